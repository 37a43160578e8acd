"""Costs of the server of a federation: seconds, memory and disk per upload, and for many sites.

    python benchmarks/federation.py             everything, about 15 minutes on two cores
    python benchmarks/federation.py --quick     only the store, without Flower
    python benchmarks/federation.py --many      only a store of 20,000 small uploads

M = 8192, r from a budget of 1.2 MB (256 columns or more), 20 classes. Writes
results/federation.md.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import multiprocessing
import os
import platform
import resource
import shutil
import subprocess
import tempfile
import threading
import time
import warnings
from contextlib import closing
from pathlib import Path

import numpy as np
import psutil

import fedran
from fedran.core._linalg.blas import add_outer
from fedran.federation.flower.programs import NO_SPINNING, free_port
from fedran.federation.ops.maintenance import verify_store
from fedran.federation.ops.scaffold import DeclaredFeatures, make_federation
from fedran.federation.ops.services import start_federation, stop_federation
from fedran.federation.ops.tasks import run_task, simulate
from fedran.federation.protocol.identity import SiteKey
from fedran.federation.protocol.messages import seal
from fedran.federation.protocol.roster import Roster
from fedran.federation.server.settings import ServerPaths, ServerSettings
from fedran.federation.server.store.database import Database
from fedran.federation.server.store.events import EventLog
from fedran.federation.server.store.store import Store
from fedran.federation.site.outbox import Outbox
from fedran.federation.status.reader import Reader
from speed import CLASSES, D, M, features

warnings.filterwarnings("ignore", "the message of .* equals that of")  # few are made, many sent

ROOT = Path(__file__).resolve().parent.parent
RANK, ROWS, MIB = 256, 2000, 2**20
TASK = "task-1"
SHOWN = (5, 50, 100, 200)
"""Uploads after which memory is read."""


def uploads(count):
    """Encoded summaries of different rows, at rank 256 and the default precision."""
    phi = fedran.RandomFeatures(D, M, seed=0, source="")
    made = []
    for seed in range(count):
        Z, y = features(ROWS, seed)
        summary = fedran.summarize(phi(Z), y, rank=RANK, fingerprint=phi.fingerprint)
        made.append(fedran.encode(summary))
    return phi, made


def peak():
    """The largest resident set of this process so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def store_alone(folder, sites, made, phi, out):
    """The work of the store without a network, in a separate process."""
    keys = {f"site-{i:03d}": SiteKey.generate() for i in range(sites)}
    roster = Roster({name: key.public for name, key in keys.items()})
    settings = ServerSettings("bench", D, M, snapshot_every=10**6)
    store = Store(folder, settings, roster)
    said = {"federation": "bench", "task": TASK, "fingerprint": phi.fingerprint.hash}
    times, cpu, peaks = [], [], {}
    for i, (name, key) in enumerate(keys.items()):
        blob = seal(made[i % len(made)], key, client=name, **said).to_bytes()
        start, used = time.perf_counter(), time.process_time()
        receipt = store.receive(blob)
        times.append(time.perf_counter() - start)
        cpu.append(time.process_time() - used)
        assert receipt.outcome == "accepted", receipt
        if i + 1 in SHOWN:
            taken = peak()
            start = time.perf_counter()
            store.solve()
            solve = time.perf_counter() - start
            peaks[i + 1] = (taken, peak())
    gram_update = update_of_the_gram(fedran.decode(made[0]).gram_factor())
    decoding = least_cpu(lambda: fedran.decode(made[0]))
    start = time.perf_counter()
    store.snapshot()
    snapshot = time.perf_counter() - start
    store.close()
    size = next(folder.glob("snapshot-*.fedran")).stat().st_size
    start = time.perf_counter()
    Store(folder, settings, roster).close()
    from_snapshot = time.perf_counter() - start
    for path in folder.glob("snapshot-*"):
        path.unlink()
    start = time.perf_counter()
    Store(folder, settings, roster).close()
    out.put(
        {
            "upload": len(blob),
            "seconds": float(np.median(times[1:])),
            "cpu": float(np.median(cpu[len(cpu) // 2 :])),
            "gram update": gram_update,
            "decode": decoding,
            "peaks": peaks,
            "database": (folder / "store.db").stat().st_size / sites,
            "snapshot bytes": size,
            "snapshot": snapshot,
            "solve": solve,
            "restart": from_snapshot,
            "replay": (time.perf_counter() - start) / sites,
        }
    )


def update_of_the_gram(factor):
    """CPU seconds of adding F F' to a Gram (M, M), which every upload needs once: M^2 r operations.

    The store cannot avoid it, so it is the least that an upload costs.
    """
    gram = np.zeros((M, M), np.float32, order="F")
    return least_cpu(lambda: add_outer(gram, factor))


def least_cpu(act):
    """The fewest seconds of CPU of five calls."""
    times = []
    for _ in range(5):
        used = time.process_time()
        act()
        times.append(time.process_time() - used)
    return min(times)


def many_uploads(folder, out):
    """Opening, status and verification of 20 uploads of each of 1,000 sites, at a small width."""
    key, phi = SiteKey.generate(), fedran.RandomFeatures(8, 64, seed=0, source="")
    rng = np.random.default_rng(0)
    summary = fedran.summarize(
        phi(rng.normal(size=(200, 8))), np.arange(200) % 10, rank=8, fingerprint=phi.fingerprint
    )
    upload, names = fedran.encode(summary), [f"site-{i:04d}" for i in range(1000)]
    summary = fedran.decode(upload)
    paths = ServerPaths(folder)
    folder.mkdir()
    paths.settings_file.write_text('federation = "bench"\nin_features = 8\nout_features = 64\n')
    Roster(dict.fromkeys(names, key.public)).save(paths.roster)
    said = {"federation": "bench", "fingerprint": phi.fingerprint.hash}
    with closing(Store.open(folder, paths.settings())) as store, store.database.transaction():
        for task in (f"task-{k:02d}" for k in range(20)):
            store.database.set_task(task, "complete", asked=names)
            for name in names:
                envelope = seal(upload, key, client=name, task=task, **said)
                row = store.database.add_upload(envelope.statement, summary, envelope.to_bytes())
                store.state.absorb(row, summary)
        store.snapshot()
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


def trial(folder, sites, made, phi):
    """A federation whose sites have their uploads ready, so that the server's work is measured."""
    address = f"127.0.0.1:{free_port()}"
    options = {"federation": "bench", "n_sites": sites, "address": address, "out_features": M}
    places = make_federation(folder, features=DeclaredFeatures(D), **options)
    for i, place in enumerate(places):
        settings = place.settings()
        key = SiteKey.load(place.folder / settings.key)
        said = {"federation": "bench", "client": settings.client, "task": TASK}
        envelope = seal(made[i % len(made)], key, fingerprint=phi.fingerprint.hash, **said)
        Outbox(place.folder / settings.state / "outbox").put(envelope)
    path = folder / "server" / "server.toml"
    path.write_text(path.read_text().replace("deadline = 300", "deadline = 900"))


def with_flower(work, sites, made, phi, *, simulated):
    """One task with this many sites: seconds, bytes and peak memory of the server."""
    folder = work / f"{'simulated' if simulated else 'deployed'}-{sites}"
    trial(folder, sites, made, phi)
    names = ("flwr-simulation",) if simulated else ("flower.executor server", "flower.superlink")
    watch = Watch(str(folder), names)
    watch.start()
    try:
        if simulated:
            start = time.perf_counter()
            (done,) = simulate(folder, [TASK], say=print)
        else:
            start_federation(folder, say=print)
            start = time.perf_counter()
            done = run_task(ServerPaths.find(folder), TASK, say=print)
        seconds = time.perf_counter() - start
    finally:
        watch.ended.set()
        stop_federation(folder, say=print)
    with closing(Database(folder / "server" / "state", read_only=True)) as database:
        book = EventLog(database).read()
    payload = sum(e["bytes"] for e in book if e["event"] == "upload")
    assert done.state == "complete", done
    shutil.rmtree(folder)
    return {"sites": sites, "seconds": seconds, "payload": payload, **vars(done), **watch.peaks}


def store_table(found):
    """The table of the store's costs."""
    uploads = " / ".join(map(str, found["peaks"]))
    before, after = (" / ".join(f"{p[k]:.0f}" for p in found["peaks"].values()) for k in (0, 1))
    rows = [
        ("upload (envelope)", f"{found['upload'] / MIB:.2f} MiB"),
        ("check, write (synced), absorb", f"{found['seconds']:.3f} s"),
        ("the same in seconds of CPU", f"{found['cpu']:.3f} s"),
        ("of this, the update of the Gram by BLAS", f"{found['gram update']:.3f} s"),
        ("of this, decompressing, decoding and checking the message", f"{found['decode']:.3f} s"),
        ("disk per upload (database)", f"{found['database'] / MIB:.2f} MiB"),
        ("disk per snapshot", f"{found['snapshot bytes'] / MIB:.0f} MiB, two are kept"),
        ("time per snapshot", f"{found['snapshot']:.2f} s"),
        ("solve the head", f"{found['solve']:.2f} s"),
        ("restart from a snapshot", f"{found['restart']:.2f} s"),
        ("restart without a snapshot, per upload", f"{found['replay']:.3f} s"),
        (f"largest memory so far, after {uploads} uploads", f"{before} MiB"),
        ("the same after solving a head", f"{after} MiB"),
    ]
    return [
        "| what | measured |",
        "|---|---|",
        *(f"| {a} | {b} |" for a, b in rows),
    ]


def many_table(found):
    """The table of a store of many small uploads."""
    names = {"open": "open it, with a snapshot", "status": "its status", "verify": "verify it"}
    names["one more upload"] = "check, write and absorb one more"
    rows = (f"| {names[what]} | {seconds:.3f} s |" for what, seconds in found.items())
    return ["| 20,000 small uploads, seconds of one core | measured |", "|---|---|", *rows]


def flower_table(found):
    """The table of whole tasks under Flower."""
    lines = [
        "| sites | how | task, s | payload, MiB | transport, MiB | server app, peak MiB | SuperLink, peak MiB |",  # noqa: E501
        "|---|---|---|---|---|---|---|",
    ]
    for f in found:
        simulated = "flwr-simulation" in f
        app = f.get("flwr-simulation") or f["flower.executor server"]
        link = "-" if simulated else f"{f['flower.superlink']:.0f}"
        way = "-" if simulated else f"{f['transport'] / MIB:.2f}"
        how = "simulated (Ray)" if simulated else "SuperNodes, TLS"
        lines.append(
            f"| {f['sites']} | {how} | {f['seconds']:.0f} | {f['payload'] / MIB:.2f} | {way} | "
            f"{app:.0f} | {link} |"
        )
    return lines


def main():
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="without Flower")
    parser.add_argument("--simulated", default="10,50,200", help="numbers of simulated sites")
    parser.add_argument("--deployed", default="5,20", help="numbers of SuperNodes")
    parser.add_argument("--many", action="store_true", help="only the many small uploads")
    options = parser.parse_args()
    os.environ.update({**NO_SPINNING, **os.environ})  # as in the processes of a server
    if options.many:
        with tempfile.TemporaryDirectory() as name:
            print("\n".join(many_table(apart(many_uploads, Path(name) / "many"))))
        return
    phi, made = uploads(10)
    print("digests", [hashlib.sha256(m).hexdigest()[:8] for m in made], flush=True)
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        lines = store_table(apart(store_alone, work / "alone", SHOWN[-1], made, phi))
        lines += ["", *many_table(apart(many_uploads, work / "many"))]
        print("\n".join(lines), flush=True)
        found = []
        if not options.quick:
            for text, simulated in ((options.deployed, False), (options.simulated, True)):
                for sites in filter(None, text.split(",")):
                    found.append(with_flower(work, int(sites), made, phi, simulated=simulated))
                    print(found[-1], flush=True)
            lines += ["", *flower_table(found)]
            write(lines)


def write(lines):
    """results/federation.md."""
    version = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True
    ).stdout.strip()
    head = [
        "# Costs of a server",
        "",
        f"`python benchmarks/federation.py` at {version or 'no commit'} on "
        f"{datetime.date.today().isoformat()}, {platform.system()}, "
        f"{os.cpu_count()} cores, OMP_NUM_THREADS {os.environ.get('OMP_NUM_THREADS', 'not set')}; "
        f"M = {M}, r = {RANK}, {CLASSES} classes. The uploads of the sites",
        "are in their outboxes before the start, so that the work of the server is measured. Peaks",
        "are the largest resident sets of the named process, sampled twice per second.",
        "",
    ]
    (ROOT / "results" / "federation.md").write_text("\n".join([*head, *lines]) + "\n")


if __name__ == "__main__":
    main()
