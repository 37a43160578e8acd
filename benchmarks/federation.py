"""Costs of the server of a federation: seconds, memory and disk per upload, and for many sites.

    python benchmarks/federation.py               the store, and tasks of 5, 20 and 1,000 sites
    python benchmarks/federation.py --deployed= --sites=     only the store, without Flower

Sites send points, the default: groups of about five rows of 1,280 columns, 20 classes. Up to 20
sites are whole programs (SuperNode and app). Of many sites each is a thread with its own key and
TLS connection, in a few processes, that asks the server as a SuperNode does and answers by the code
of a site; the server is as in production. Writes results/federation.md.
"""

from __future__ import annotations

import argparse
import datetime
import logging
import multiprocessing
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import psutil

import fedran
from fedran.federation.flower.programs import NO_SPINNING, free_port
from fedran.federation.ops.maintenance import verify_store
from fedran.federation.ops.scaffold import DeclaredFeatures, make_federation
from fedran.federation.ops.services import start_federation, start_service, stop_federation
from fedran.federation.ops.tasks import run_task
from fedran.federation.protocol.identity import SiteKey
from fedran.federation.protocol.lockfile import lock_holder, wait_until
from fedran.federation.protocol.messages import Question, seal
from fedran.federation.protocol.roster import Roster
from fedran.federation.server.settings import ServerPaths, ServerSettings
from fedran.federation.server.store.database import Database
from fedran.federation.server.store.events import EventLog
from fedran.federation.server.store.store import Store
from fedran.federation.site import app as site_app
from fedran.federation.site.outbox import Outbox
from fedran.federation.status.reader import Reader
from speed import CLASSES, D, features

warnings.filterwarnings("ignore", "the message of .* equals that of")  # few are made, many sent

ROOT = Path(__file__).resolve().parent.parent
ROWS, MANY_ROWS, MIB = 2000, 250, 2**20
"""Rows per site: of few sites, and of many."""
TASK = "task-1"
PULL_SECONDS = 3.0
"""Between two questions of a SuperNode without work, as in Flower."""
IDLE_SECONDS = 30.0
"""Without a task, in which the processor time of the SuperLink is measured."""
QUESTIONS = {"train": Question.OFFER, "evaluate": Question.VALIDATE, "query": Question.RESULTS}
"""By the types of Flower's messages."""
START_SECONDS, RETRY_SECONDS = 0.15, 10.0
"""Between the starts of two sites, and until one that could not connect tries again."""


def uploads(count, rows):
    """Encoded points of different rows, as a site makes them by default."""
    phi = fedran.KernelFeatures(D, source="")
    made = []
    for seed in range(count):
        Z, y = features(rows, seed)
        points = fedran.condense(phi(Z), y, 5, 5, phi.fingerprint)
        made.append(fedran.encode(points))
    return phi, made


def peak():
    """The largest resident set of this process so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def store_alone(folder, shown, made, phi, out):
    """The work of the store without a network, in a separate process."""
    keys = {f"site-{i:03d}": SiteKey.generate() for i in range(shown[-1])}
    roster = Roster({name: key.public for name, key in keys.items()})
    settings = ServerSettings("bench", D)
    store = Store(folder, settings, roster)
    said = {"federation": "bench", "task": TASK, "fingerprint": phi.fingerprint.hash}
    times, cpu, peaks, solves = [], [], {}, {}
    for i, (name, key) in enumerate(keys.items()):
        blob = seal(made[i % len(made)], key, client=name, **said).to_bytes()
        start, used = time.perf_counter(), time.process_time()
        receipt = store.receive(blob)
        times.append(time.perf_counter() - start)
        cpu.append(time.process_time() - used)
        assert receipt.outcome == "accepted", receipt
        if i + 1 in shown:
            taken, start = peak(), time.process_time()
            store.solve()
            solves[i + 1] = time.process_time() - start
            peaks[i + 1] = (taken, peak())
    store.close()
    start = time.process_time()
    Store(folder, settings, roster).close()
    out.put(
        {
            "upload": len(blob),
            "seconds": float(np.median(times[1:])),
            "cpu": float(np.median(cpu[len(cpu) // 2 :])),
            "peaks": peaks,
            "solves": solves,
            "database": (folder / "store.db").stat().st_size / shown[-1],
            "restart": time.process_time() - start,
        }
    )


def many_uploads(folder, out):
    """Opening, status and verification of 20 uploads of each of 1,000 sites, of few columns."""
    key, phi = SiteKey.generate(), fedran.KernelFeatures(8, source="")
    rng = np.random.default_rng(0)
    points = fedran.condense(
        phi(rng.normal(size=(200, 8))), np.arange(200) % 10, 5, 5, fingerprint=phi.fingerprint
    )
    upload, names = fedran.encode(points), [f"site-{i:04d}" for i in range(1000)]
    points = fedran.decode(upload)
    paths = ServerPaths(folder)
    folder.mkdir()
    paths.settings_file.write_text('federation = "bench"\nin_features = 8\n')
    Roster(dict.fromkeys(names, key.public)).save(paths.roster)
    said = {"federation": "bench", "fingerprint": phi.fingerprint.hash}
    with closing(Store.open(folder, paths.settings())) as store, store.database.transaction():
        for task in (f"task-{k:02d}" for k in range(20)):
            store.database.set_task(task, "complete", asked=names)
            for name in names:
                envelope = seal(upload, key, client=name, task=task, **said)
                store.database.add_upload(envelope.statement, points, envelope.to_bytes())
    found = {}
    with closing(Store.open(folder, paths.settings())) as store:
        extra, times = [f"new-{i}" for i in range(50)], []
        store.roster = Roster(dict.fromkeys((*names, *extra), key.public))
        for name in extra:
            blob = seal(upload, key, client=name, task="task-00", **said).to_bytes()
            start = time.process_time()
            assert store.receive(blob).outcome == "accepted"
            times.append(time.process_time() - start)
    found["one more upload"] = float(np.median(times))
    for what, act in (
        ("open", lambda: Store.open(folder, paths.settings()).close()),
        ("status", lambda: Reader(folder).read().to_json()),
        ("verify", lambda: verify_store(paths)),
    ):
        start = time.process_time()
        act()
        found[what] = time.process_time() - start
    out.put(found)


def apart(function, *arguments):
    """Run a function in a new process, so that its peak memory is its own."""
    context = multiprocessing.get_context("spawn")
    out = context.Queue()
    child = context.Process(target=function, args=(*arguments, out))
    child.start()
    found = out.get(timeout=1200)
    child.join()
    return found


class Watch(threading.Thread):
    """Largest resident sets of the federation's processes whose command contains a given name."""

    def __init__(self, folder, names):
        super().__init__(daemon=True)
        self.folder, self.names, self.peaks, self.ended = folder, names, {}, threading.Event()

    def run(self):
        """Sample twice per second."""
        while not self.ended.wait(0.5):
            for process in psutil.process_iter():
                try:
                    command = " ".join(process.cmdline())
                    ours = any(self.folder in value for value in process.environ().values())
                    resident = process.memory_info().rss / MIB
                except psutil.Error:
                    continue
                for name in self.names:
                    if name in command and ours:
                        self.peaks[name] = max(self.peaks.get(name, 0), resident)


def fill(places, made, phi):
    """Put uploads into the outboxes, so that the server's work is measured."""
    for i, place in enumerate(places):
        settings = place.settings()
        key = SiteKey.load(place.folder / settings.key)
        said = {"federation": "bench", "client": settings.client, "task": TASK}
        envelope = seal(made[i % len(made)], key, fingerprint=phi.fingerprint.hash, **said)
        Outbox(place.folder / settings.state / "outbox").put(envelope)


def site_thread(address, place, number, ended):
    """One site: asks for messages as a SuperNode does, and answers by the code of a site."""
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key
    from flwr.app import Message
    from flwr.supercore.inflatable.inflatable_object import (
        get_all_nested_objects,
        get_object_tree,
        iterate_object_tree,
    )
    from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
    from flwr.supernode.fleet_http_connection import http_request_response

    from fedran.federation.flower.records import make_record, read_record

    key = load_ssh_private_key((place.folder / "node.key").read_bytes(), None)
    keys, certificate = (key, key.public_key()), str(place.folder / "ca.crt")

    def answer(_node, receive, send, _run, _app, pull, push, confirm):
        while not ended.is_set():
            if (found := receive()) is None:
                ended.wait(PULL_SECONDS)
                continue
            message, tree = found
            run, name = message.metadata.run_id, message.metadata.message_id
            ids = [part.object_id for part in iterate_object_tree(tree)]
            whole = inflate_object_from_contents(name, {i: pull(run, i) for i in ids})
            whole.metadata.__dict__["_message_id"] = name
            confirm(run, name)
            start = time.monotonic()
            kind = QUESTIONS[whole.metadata.message_type]
            given = site_app.respond(kind, *read_record(whole.content), place.settings_file)
            reply = Message(make_record(*given), reply_to=whole)
            reply.metadata.__dict__["_message_id"] = reply.object_id
            parts = get_all_nested_objects(reply)
            wanted, session = send(reply, get_object_tree(reply), time.monotonic() - start)
            for part in wanted:
                push(run, session, part, parts[part].deflate())

    ended.wait(number * START_SECONDS)
    while not ended.is_set():
        with suppress(SystemExit), http_request_response(address, False, certificate, keys) as link:
            answer(*link)
        ended.wait(RETRY_SECONDS)  # as a site's supervisor starts a SuperNode again


def site_process(address, folder, numbers, ended):
    """Some of the sites of a folder, as threads."""
    site_app.log_to = lambda _: None  # a log belongs to a process
    logging.disable(logging.WARNING)
    places = site_app_folders(folder)
    threads = [
        threading.Thread(target=site_thread, args=(address, places[i], i, ended), daemon=True)
        for i in numbers
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def site_app_folders(folder):
    """The sites in the order of their numbers."""
    from fedran.federation.site.settings import SitePaths

    return [SitePaths(file.parent) for file in sorted(Path(folder).glob("*/site.toml"))]


def online(server):
    """How many nodes are connected."""
    from fedran.federation.flower import control

    try:
        return sum(node.status == "online" for node in control.list_nodes(server))
    except control.FlowerError:
        return 0


def task_of(work, sites, made, phi, processes=0):
    """One task with this many sites: seconds, processor time and memory of the server's programs.

    ``processes``: how many hold the sites; 0: every site is two programs of its own.
    """
    folder, address = work / f"sites-{sites}", f"127.0.0.1:{free_port()}"
    options = {"federation": "bench", "n_sites": sites, "address": address, "deadline": 3600.0}
    fill(make_federation(folder, features=DeclaredFeatures(D), **options), made, phi)
    server = ServerPaths.find(folder)
    watch = Watch(str(folder), ("flower.executor server", "flower.superlink"))
    watch.start()
    context, spawned = multiprocessing.get_context("spawn"), []
    ended, found = context.Event(), {"sites": sites, "processes": processes}
    try:
        start = time.perf_counter()
        if processes:
            start_service("server", server.folder)
            for first in range(processes):
                given = (address, folder / "sites", range(first, sites, processes), ended)
                spawned.append(context.Process(target=site_process, args=given, daemon=True))
            ready = f"the server listens and has registered {sites} nodes"
            assert wait_until(lambda: registered(server) >= sites, 1800.0, 2.0), ready
            found["registered"] = time.perf_counter() - start
            for process in spawned:
                process.start()
            assert wait_until(lambda: online(server) >= sites, 1800.0, 5.0), "sites connect"
        else:
            start_federation(folder, say=print)
        found["connected"] = time.perf_counter() - start
        idle = used(server.folder)
        time.sleep(IDLE_SECONDS)
        before, start = used(server.folder), time.perf_counter()
        found["idle"] = (before["superlink"] - idle["superlink"]) / IDLE_SECONDS
        done = run_task(server, TASK, say=print)
        found["seconds"] = time.perf_counter() - start
        time.sleep(5)  # programs take note of children that ended
        after, start = used(server.folder), time.process_time()
        Reader(server.folder).read().to_json()
        found["status"] = time.process_time() - start
        found |= {f"cpu {name}": after[name] - before.get(name, 0.0) for name in after}
    finally:
        ended.set()
        watch.ended.set()
        stop_federation(folder, say=print)
        for process in spawned:
            process.terminate()
    with closing(Database(folder / "server" / "state", read_only=True)) as database:
        book = EventLog(database).read()
        runs = database.sql.execute("SELECT received + sent FROM runs WHERE task = ?", [TASK])
        found["transport"] = sum(size for (size,) in runs)
    found["payload"] = sum(e["bytes"] for e in book if e["event"] == "upload")
    assert done == "complete", done
    shutil.rmtree(folder)
    return found | watch.peaks


def registered(server):
    """How many nodes the server has registered."""
    try:
        with closing(Database(server.state, read_only=True)) as database:
            return len(database.nodes())
    except OSError:
        return 0


def used(folder):
    """Processor time of the SuperLink and of the server's app, ended children included."""
    found, holder = {}, lock_holder(folder / "log") or {}
    for process in psutil.Process(holder["pid"]).children() if "pid" in holder else ():
        command = " ".join(process.cmdline())
        for program in ("executor", "superlink"):
            if f"flower.{program}" in command:
                found[program] = sum(process.cpu_times()[:4])
    return found


def store_table(found):
    """The table of the store's costs."""
    uploads = " / ".join(map(str, found["peaks"]))
    before, after = (" / ".join(f"{p[k]:.0f}" for p in found["peaks"].values()) for k in (0, 1))
    solves = " / ".join(f"{seconds:.1f}" for seconds in found["solves"].values())
    rows = [
        ("upload (envelope)", f"{found['upload'] / MIB:.2f} MiB"),
        ("check, write (synced), keep", f"{found['seconds']:.3f} s"),
        ("the same in seconds of CPU", f"{found['cpu']:.3f} s"),
        ("disk per upload (database)", f"{found['database'] / MIB:.2f} MiB"),
        ("open the store again, seconds of CPU", f"{found['restart']:.2f} s"),
        (f"solve the head of {uploads} uploads, seconds of CPU", f"{solves} s"),
        ("largest memory so far, before each of these", f"{before} MiB"),
        ("the same after it", f"{after} MiB"),
    ]
    return ["| what | measured |", "|---|---|", *(f"| {a} | {b} |" for a, b in rows)]


def many_table(found):
    """The table of a store of many small uploads."""
    names = {"open": "open it", "status": "its status", "verify": "verify it"}
    names["one more upload"] = "check, write and keep one more"
    rows = (f"| {names[what]} | {seconds:.3f} s |" for what, seconds in found.items())
    return ["| 20,000 small uploads, seconds of one core | measured |", "|---|---|", *rows]


def flower_table(found):
    """The table of whole tasks over Flower."""
    names = ["sites", "programs of sites", "to connect, s", "task, s", "server app, CPU s"]
    names += ["SuperLink, CPU s", "the same idle, per s", "server app, peak MiB"]
    names += ["SuperLink, peak MiB"]
    names += ["uploads, MiB", "transport, MiB", "status, CPU s"]
    lines = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    for f in found:
        programs = f["processes"] or 2 * f["sites"]
        cells = [f"{f['sites']:,}", f"{programs}", f"{f['connected']:.0f}", f"{f['seconds']:.0f}"]
        cells += [f"{f['cpu executor']:.0f}", f"{f['cpu superlink']:.0f}", f"{f['idle']:.2f}"]
        cells += [f"{f['flower.executor server']:.0f}", f"{f['flower.superlink']:.0f}"]
        cells += [f"{f['payload'] / MIB:.1f}", f"{f['transport'] / MIB:.1f}", f"{f['status']:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def main():
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--uploads", default="5,50,100,200", help="after which a head is solved")
    parser.add_argument("--deployed", default="5,20", help="numbers of sites as whole programs")
    parser.add_argument("--sites", default="1000", help="numbers of sites in few processes")
    parser.add_argument("--processes", type=int, default=4, help="that hold these sites")
    options = parser.parse_args()
    os.environ.update({**NO_SPINNING, **os.environ})  # as in the processes of a server
    phi, made = uploads(10, ROWS)
    lines, found = [], []
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        if shown := numbers(options.uploads):
            lines = store_table(apart(store_alone, work / "alone", shown, made, phi))
            lines += ["", *many_table(apart(many_uploads, work / "many")), ""]
            write(lines)
        for text, rows, processes in (
            (options.deployed, ROWS, 0),
            (options.sites, MANY_ROWS, options.processes),
        ):
            phi, made = uploads(10, rows)
            for sites in numbers(text):
                found.append(task_of(work, sites, made, phi, processes))
                print(found[-1], flush=True)
                write([*lines, *flower_table(found)])


def numbers(text):
    """Numbers separated by commas."""
    return [int(part) for part in text.split(",") if part]


def write(lines):
    """results/federation.md."""
    version = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True
    ).stdout.strip()
    head = [
        "# Costs of a server",
        "",
        f"`python {' '.join(sys.argv)}` at {version or 'no commit'} on "
        f"{datetime.date.today().isoformat()}, {platform.system()}, "
        f"{os.cpu_count()} cores, OMP_NUM_THREADS {os.environ.get('OMP_NUM_THREADS', 'not set')}; "
        f"points of {D:,} columns in groups of about 5 rows, {CLASSES} classes, {ROWS:,} rows per "
        f"site ({MANY_ROWS} where sites are threads of few processes).",
        "The uploads of the sites are in their outboxes before the start, so that the work of the",
        "server is measured. All programs share the cores. Peaks are the largest resident sets of",
        "the named process, sampled twice per second.",
        "",
    ]
    (ROOT / "results" / "federation.md").write_text("\n".join([*head, *lines]) + "\n")


if __name__ == "__main__":
    main()
