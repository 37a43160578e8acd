"""Speed and memory of the library against its peers, side by side in one run.

    python benchmarks/speed.py            everything, about ten minutes on two cores
    python benchmarks/speed.py --quick    without the paper's whole task (five 30 s merges)

Each time is the best of several runs on the same inputs. Writes results/speed.md.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import fedran
from fedran_bench.results.result import library_versions
from literal_paper import class_sums, client_svd, merge_svd, subspace_head

ROOT = Path(__file__).resolve().parent.parent
M, D, N, CLASSES, CLIENTS = 8192, 1280, 2000, 20, 5
LANDMARKS = 4096


def features(n, seed):
    """Backbone-like features: non-negative, 20 classes, a decaying spectrum."""
    rng = np.random.default_rng(seed)
    decay = np.arange(1, D + 1) ** -0.5
    centres = np.random.default_rng(0).standard_normal((CLASSES, D)) * decay
    y = rng.integers(0, CLASSES, n)
    Z = centres[y] + rng.standard_normal((n, D)) * decay
    return np.maximum(Z + 0.1, 0).astype(np.float32), y


def best(function, repeat):
    """Shortest of ``repeat`` runs, and the last result."""
    times, value = [], None
    for _ in range(repeat):
        start = time.perf_counter()
        value = function()
        times.append(time.perf_counter() - start)
    return min(times), value


def row(what, ours, theirs, ratio, target, note=""):
    """One line of the table; printed as soon as it is known."""
    print(f"{what}: {ours} against {theirs} -> {ratio} (to reach {target}) {note}", flush=True)
    return what, ours, theirs, ratio, target, note


def faster(what, ours, theirs, target, form="{:.2f} s", note=""):
    """A row of two figures, and how many times smaller ours is."""
    return row(what, form.format(ours), form.format(theirs), f"{theirs / ours:.1f}x", target, note)


def no_slower(what, ours, theirs, target):
    """A row of seconds, and how many times longer ours takes."""
    ratio = f"{ours / theirs:.2f} times the time"
    return row(what, f"{ours:.2f} s", f"{theirs:.2f} s", ratio, target)


def feature_maps(Z):
    """Random features with GELU against those with ReLU, in turns."""
    maps = {kind: fedran.RandomFeatures(D, M, kind) for kind in ("relu", "cosine", "hellinger")}
    for phi in maps.values():
        phi(Z)
    turns = [
        {kind: best(lambda phi=phi: phi(Z), 1)[0] for kind, phi in maps.items()} for _ in range(7)
    ]
    seconds = {kind: min(turn[kind] for turn in turns) for kind in maps}
    return [
        no_slower(
            f"`phi(Z)` of kind {kind} against relu", seconds[kind], seconds["relu"], "at most 1.6"
        )
        for kind in ("cosine", "hellinger")
    ]


def summaries(H, y):
    """``summarize`` against NumPy's thin SVD, alternating so that noise hits both.

    The SVD gets the rows minus their class means; ``summarize`` subtracts them itself.
    """
    rows, peer, ours = [], [], {256: [], 2048: []}
    within = H.copy()
    for c in np.unique(y):
        within[y == c] -= H[y == c].mean(axis=0, dtype=np.float64).astype(H.dtype)
    s = None
    for _ in range(3):
        t, (_, s, _) = best(lambda: np.linalg.svd(within, full_matrices=False), 1)
        peer.append(t)
        for rank, times in ours.items():
            t, summary = best(lambda r=rank: fedran.summarize(H, y, r), 2)
            times.append(t)
            if rank == 256:
                leading = np.abs(summary.sigma / s[: summary.rank] - 1)[:64].max()
    for rank, target in ((256, "8x"), (2048, "5x")):
        what = f"`summarize`, r={rank}, against NumPy's thin SVD"
        note = f"64 leading singular values to {leading:.1e}" if rank == 256 else ""
        rows.append(faster(what, min(ours[rank]), min(peer), target, note=note))
    return rows


def points(Z, y):
    """``condense``, prediction with landmarks against random features, and the kernel solve."""
    phi, wide = fedran.KernelFeatures(D, "hellinger"), fedran.RandomFeatures(D, M, "hellinger")
    grouped, _ = best(lambda: fedran.condense(phi(Z), y, group_size=5), 5)
    weights = np.random.default_rng(0).standard_normal((M, 100)).astype(np.float32)
    diagnosis = fedran.core.solve.head.Diagnosis("made up", 1.0, 0.0, N, 1.0, 1.0, 0.0)
    rows, classes = phi(features(LANDMARKS, 1)[0]), tuple(range(100))
    kernel_head = fedran.Head(weights[:LANDMARKS], classes, diagnosis, landmarks=rows, scale=0.2)
    head = fedran.Head(weights, classes, diagnosis)
    ours = theirs = np.inf
    wide(Z[:1])  # draws the projection
    for _ in range(5):
        ours = min(ours, best(lambda: kernel_head.predict(phi(Z)), 1)[0])
        theirs = min(theirs, best(lambda: head.predict(wide(Z)), 1)[0])
    made = [
        row("`condense`, groups of 5", f"{grouped:.2f} s", "-", "-", "at most 0.4 s"),
        no_slower(
            f"prediction with {LANDMARKS} landmarks against {M} random features",
            ours,
            theirs,
            "at most 0.7",
        ),
    ]
    for ridge, target in ((0.03, 16), (None, 45)):
        half, whole = (child(POINTS, str(n), str(ridge)) for n in (25_000, 50_000))
        what = f"solve with 50,000 points, {LANDMARKS} landmarks, "
        what += "the best ridge of a grid" if ridge is None else "a given ridge"
        ratio = f"{whole['seconds'] / half['seconds']:.1f} times 25,000 points"
        plain = f"{whole['matmul']:.1f} s for products of as many operations"
        made.append(row(what, f"{whole['seconds']:.1f} s", plain, ratio, f"at most {target} s"))
        peak = f"{whole['peak_mb']:.0f} MB"
        made.append(row(f"{what}: peak memory", peak, "-", "-", "at most 2048 MB"))
    return made


def server_with_past(phi):
    """An aggregator that has seen two tasks (in Gram form), and five fresh uploads."""
    agg = fedran.Aggregator(M)
    blobs = []
    for k in range(15):
        Z, y = features(N, seed=k)
        blob = fedran.encode(fedran.summarize(phi(Z), y, 256))
        if k < 10:
            agg.absorb(fedran.decode(blob), client=f"c{k}", task="past")
        else:
            blobs.append(blob)
    return agg, blobs


def absorb_against_merge(agg, blobs, factors):
    """Adding one summary to the default aggregator, against one rank-2048 QR-SVD merge."""
    decoded = [fedran.decode(b) for b in blobs]
    times = []
    for k, s in enumerate(decoded):
        start = time.perf_counter()
        agg.absorb(s, client=f"c{k}", task="absorb")
        times.append(time.perf_counter() - start)
    theirs, merged = best(lambda: merge_svd(factors[0], factors[1], 2048), 1)
    ours = min(times)
    return (
        merged,
        theirs,
        row(
            "absorb one r=256 summary against one rank-2048 QR-SVD merge",
            f"{ours:.3f} s",
            f"{theirs:.1f} s",
            f"{theirs / ours:.0f}x",
            "100x",
        ),
    )


def whole_task_ours(phi, agg, tag):
    """Mean client (map, summarize, encode) + server (decode, absorb, solve), seconds."""
    client, blobs = [], []
    for k in range(CLIENTS):
        Z, y = features(N, seed=100 + k)
        start = time.perf_counter()
        blobs.append(fedran.encode(fedran.summarize(phi(Z), y, 256)))
        client.append(time.perf_counter() - start)
    start = time.perf_counter()
    for k, blob in enumerate(blobs):
        agg.absorb(fedran.decode(blob), client=f"c{k}", task=tag)
    agg.solve()
    return float(np.mean(client)), time.perf_counter() - start


def whole_task_paper(phi, past):
    """The same task by the paper's letter: rank-2048 SVDs, four spatial merges, a temporal one."""
    client, sent = [], []
    classes = np.arange(CLASSES)
    for k in range(CLIENTS):
        Z, y = features(N, seed=100 + k)
        start = time.perf_counter()
        H = phi(Z)
        sent.append((client_svd(H, 2048), class_sums(H, y, classes)))
        client.append(time.perf_counter() - start)
    start = time.perf_counter()
    task, B = None, 0.0
    for summary, sums in sent:
        task = merge_svd(task, summary, 2048)
        B = B + sums
    V, s = merge_svd(past, task, 2048)
    subspace_head(V, s, B, 1e-3)
    return float(np.mean(client)), time.perf_counter() - start


CHILD = """
import json, sys, time
import numpy as np
sys.path.insert(0, "benchmarks")
from speed import D, peak_mb
Z, y = np.load(sys.argv[2] + "/Z.npy"), np.load(sys.argv[2] + "/y.npy")
if sys.argv[1] == "ours":
    from fedran import FedRANClassifier
    FedRANClassifier(out_features=64).fit(Z[:100], y[:100])
    run = lambda: FedRANClassifier(out_features=4096).fit(Z, y)
else:
    from fedran import RandomFeatures
    from sklearn.linear_model import RidgeClassifier
    RidgeClassifier().fit(Z[:100, :9], y[:100])
    alpha = 0.05 * float(np.mean(np.sum(RandomFeatures(D, 4096)(Z[:500]) ** 2, axis=1)))
    def run():
        # Peer at its best: float32, no intercept (it would copy H to centre it), our ridge.
        H = RandomFeatures(D, 4096)(Z)
        RidgeClassifier(alpha=alpha, fit_intercept=False, copy_X=False).fit(H, y)
times = []
for _ in range(2):
    start = time.perf_counter(); run(); times.append(time.perf_counter() - start)
print(json.dumps({"seconds": min(times), "peak_mb": peak_mb()}))
"""

SERVER = """
import json, sys, tempfile, pathlib
sys.path.insert(0, "benchmarks")
from speed import features, peak_mb, D, M
import fedran
phi = fedran.RandomFeatures(D, M)
agg = fedran.Aggregator(M)
folder = pathlib.Path(tempfile.mkdtemp())
for k in range(50):
    Z, y = features(300, k)
    blob = fedran.encode(fedran.summarize(phi(Z), y, 256))
    agg.absorb(fedran.decode(blob), client=f"c{k}", task="t")
agg.solve()
fedran.save(agg, folder / "server.fedran")
(folder / "server.fedran").unlink(); folder.rmdir()
print(json.dumps({"peak_mb": peak_mb()}))
"""


POINTS = """
import json, sys, time
sys.path.insert(0, "benchmarks")
import fedran
import numpy as np
from speed import D, LANDMARKS, N, best, features, peak_mb
phi = fedran.KernelFeatures(D, "hellinger")
server = fedran.Aggregator(fingerprint=phi.fingerprint)
for k in range(int(sys.argv[1]) // N):
    Z, y = features(N, k)
    y = y + 20 * (k % 5)
    points = fedran.condense(phi(Z), y, fingerprint=phi.fingerprint)
    server.absorb(points, client=f"c{k}", task="t")
    del Z, y, points
start = time.perf_counter()
server.solve(None if sys.argv[2] == "None" else float(sys.argv[2]), landmarks=LANDMARKS)
seconds, peak, n, m = time.perf_counter() - start, peak_mb(), int(sys.argv[1]), LANDMARKS
A = np.ones((2000, 2000))
second64, second32 = (16e9 / best(lambda X=X: X @ X, 3)[0] for X in (A, A.astype(np.float32)))
matmul = 2 * n * m * D / second32 + (n * m**2 + 3 * m**3) / second64
print(json.dumps({"seconds": seconds, "peak_mb": peak, "matmul": matmul}))
"""


def peak_mb():
    """Peak resident memory of this process; getrusage would count its parent's before exec."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def child(code, *arguments):
    """Run code in a fresh process, so that its peak memory is its own."""
    with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
        file.write(code)
        file.flush()
        done = subprocess.run(
            [sys.executable, file.name, *arguments],
            capture_output=True,
            text=True,
            cwd=ROOT,
            check=True,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        )
    return json.loads(done.stdout.splitlines()[-1])


def estimator():
    """The estimator against random features + RidgeClassifier, time and memory."""
    with tempfile.TemporaryDirectory() as folder:
        for name, array in zip("Zy", features(20000, 0), strict=True):
            np.save(Path(folder) / f"{name}.npy", array)
        runs = [(child(CHILD, "ours", folder), child(CHILD, "theirs", folder)) for _ in range(3)]
    ours = min(a["seconds"] for a, _ in runs)
    theirs = min(b["seconds"] for _, b in runs)
    ours_mb, theirs_mb = runs[0][0]["peak_mb"], runs[0][1]["peak_mb"]
    what = "`FedRANClassifier(4096).fit`, n=20,000, against features + `RidgeClassifier`"
    return [
        faster(f"{what}: time", ours, theirs, "1x", "{:.1f} s"),
        faster(f"{what}: peak memory", ours_mb, theirs_mb, "2x", "{:.0f} MB"),
    ]


def server_memory():
    """Peak resident memory of a server: 50 uploads of r=256, a solve and a save."""
    peak = child(SERVER)["peak_mb"]
    return row(
        "server, M=8192, 50 uploads of r=256, solve and save: peak memory",
        f"{peak:.0f} MB",
        "-",
        "-",
        "under 1200 MB",
    )


def machine():
    """Cores, processor and libraries, in one line."""
    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [
            x.split(":")[1].strip() for x in info.read_text().splitlines() if "model name" in x
        ]
        name = names[0] if names else name
    versions = ", ".join(f"{k} {v}" for k, v in library_versions().items())
    return f"{os.cpu_count()} cores, {name}, Python {platform.python_version()}, {versions}"


def write(rows, command):
    """results/speed.md, made by this file and never edited."""
    lines = [
        "# Speed and memory",
        "",
        f"Made by `{command}` on {datetime.date.today()}; {machine()}.",
        f"M = {M}, d = {D}, n = {N} rows per client; best of several repetitions, "
        "peers measured in the same run.",
        "",
        "| what | fedran | peer | ratio | to reach | |",
        "|---|---|---|---|---|---|",
    ]
    lines += [f"| {' | '.join(cells)} |" for cells in rows]
    path = ROOT / "results" / "speed.md"
    path.write_text("\n".join(lines) + "\n")
    print(f"wrote {path.relative_to(ROOT)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="leave out the paper's whole task")
    quick = parser.parse_args().quick
    phi = fedran.RandomFeatures(D, M)
    Z, y = features(N, seed=0)
    H = phi(Z)
    rows = feature_maps(Z)
    rows += summaries(H, y)
    rows += points(Z, y)
    rows += estimator()
    rows.append(server_memory())
    factors = [client_svd(phi(features(N, seed=k)[0]), 2048) for k in (1, 2)]
    agg, blobs = server_with_past(phi)
    past, _, line = absorb_against_merge(agg, blobs, factors)
    rows.append(line)
    if not quick:
        ours = min((whole_task_ours(phi, agg, f"t{i}") for i in range(3)), key=sum)
        theirs = whole_task_paper(phi, past)
        rows.append(
            row(
                "a whole task (mean client + server + solve), r=256, against the paper's "
                "algorithm at r=2048",
                f"{ours[0]:.2f} + {ours[1]:.2f} s",
                f"{theirs[0]:.1f} + {theirs[1]:.0f} s",
                f"{sum(theirs) / sum(ours):.0f}x",
                "40x",
            )
        )
        write(rows, "make bench")


if __name__ == "__main__":
    main()
