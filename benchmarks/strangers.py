"""What strangers cost a server: large unsigned requests, and idle connections.

    python benchmarks/strangers.py [--open-files N]

Makes a federation on this machine, and prints one line per measurement.
"""

import argparse
import resource
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import psutil

from fedran.federation.flower.programs import free_port
from fedran.federation.ops.scaffold import make_federation
from fedran.federation.ops.services import start_federation, stop_federation

REQUESTS, BYTES, IDLE = 60, 10 * 2**20, 5000
HEAD = "POST /v1/fleet/push-object HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n"


def memory(folder):
    """MiB of the SuperLink."""
    total = 0
    for process in psutil.process_iter():
        try:
            command = " ".join(process.cmdline())
            if "flower.superlink" in command and str(folder) in command:
                total += process.memory_info().rss
        except psutil.Error:
            continue
    return total / 2**20


def send(port, answers):
    """Send a large request without a signature, but for its last byte."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        plain = socket.create_connection(("127.0.0.1", port), timeout=20)
        with context.wrap_socket(plain) as link:
            try:
                link.sendall(HEAD.format(BYTES + 1).encode())
                for _ in range(BYTES // 2**16):
                    link.sendall(bytes(2**16))
            except OSError:
                pass
            time.sleep(6)
            answers.append(link.recv(12).decode())
    except OSError as reason:
        answers.append(type(reason).__name__)


def task_seconds(folder, task):
    """Seconds of a task; what it says if it fails."""
    command = [sys.executable, "-m", "fedran", "federation", "task", str(folder), task]
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return f"{time.perf_counter() - start:.0f} s" if done.returncode == 0 else done.stderr.strip()


def main():
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--open-files", type=int, default=20_000, help="limit of the server")
    options = parser.parse_args()
    idle = min(IDLE, options.open_files + 76)
    with tempfile.TemporaryDirectory() as name:
        folder, port = Path(name) / "trial", free_port()
        make_federation(folder, address=f"127.0.0.1:{port}")
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (options.open_files, hard))
        start_federation(folder, say=print)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(20_000, hard), hard))
        try:
            print("a task:", task_seconds(folder, "task-1"))
            answers, peaks = [], [memory(folder)]
            given = {"target": send, "args": (port, answers)}
            threads = [threading.Thread(**given) for _ in range(REQUESTS)]
            for thread in threads:
                thread.start()
            while any(thread.is_alive() for thread in threads):
                peaks.append(memory(folder))
                time.sleep(0.1)
            what = f"{REQUESTS} unsigned requests of {BYTES // 2**20} MiB"
            print(f"{what}: {peaks[0]:.0f} to {max(peaks):.0f} MiB", Counter(answers))
            held = [socket.create_connection(("127.0.0.1", port)) for _ in range(idle)]
            print(f"a task beside {len(held)} idle connections:", task_seconds(folder, "task-2"))
        finally:
            stop_federation(folder, say=print)


if __name__ == "__main__":
    main()
