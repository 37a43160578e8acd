"""A sweep of four small runs, and the figures of its results that do not depend on time."""

from fedran_bench.results.result import read_results

CONFIG = """
dataset = "digits"
[stream]
tasks = 2
clients = 2
beta = 0.5
seed = [1, 2]
[[method]]
key = "fedncm"
[[method]]
key = "fedran"
out_features = 32
rank = 4
"""
BROKEN = '\n[[method]]\nkey = "finetune"\nn_rounds = 1\nlr = 1e30\n'
"""A method whose training diverges."""
TWO_METHODS = """
dataset = "digits"
[stream]
tasks = 5
clients = 5
beta = 0.1
[[method]]
key = "fedran"
rank = 8
[[method]]
key = "fedncm"
"""
"""One stream and two methods, for tests of the configuration itself."""


def measured(file):
    """Accuracies, bytes and id of each run."""
    return {
        (r.key, r.seeds["order"]): (r.acc, [t.bytes_up for t in r.tasks], r.run_id)
        for r in read_results([file])
    }


def steps(job):
    """How often a run reports progress: after every client, and after every test."""
    prepared = job.prepare()
    tasks, clients = len(prepared.stream.tasks), prepared.stream.n_clients
    return sum(prepared.method.rounds(t) for t in range(tasks)) * clients + tasks
