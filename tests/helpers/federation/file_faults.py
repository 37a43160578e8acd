"""Accepts an upload while one file call after the other fails. Run with LD_PRELOAD=file_faults.so.

    python file_faults.py FOLDER MODE

``kill``: the process is killed at the call. ``EIO``: the call fails. ``ENOSPC``: it and every later
one fail. After each attempt the store is opened again. Prints the number of calls.
"""

import ctypes
import errno
import os
import shutil
import sys
from contextlib import closing, suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import fedran
from fedran.federation.ops.maintenance import verify
from helpers.federation.made_federation import Sites, upload

ACKNOWLEDGED, NOT_ACKNOWLEDGED, NOTHING_FAILED = 10, 11, 12


def attempt(sites, folder, blob, number, mode):
    """The child process: accept the upload with a fault at this file call."""
    store = sites.store(folder)
    library = ctypes.CDLL(None)  # with the preloaded one
    at, calls = (ctypes.c_long.in_dll(library, name) for name in ("fault_at", "file_calls"))
    error, forever = (ctypes.c_int.in_dll(library, n) for n in ("fault_errno", "fault_forever"))
    error.value = 0 if mode == "kill" else getattr(errno, mode)
    forever.value, at.value = mode == "ENOSPC", number
    accepted = False
    with suppress(OSError):
        accepted = store.receive(blob).code == "accepted"
        store.database.checkpoint()
    at.value = 0
    if calls.value < number:
        os._exit(NOTHING_FAILED)
    # The process goes on: what failed can be repeated, what did not is known.
    again = store.receive(blob).code
    assert again == ("duplicate" if accepted else "accepted"), again
    os._exit(ACKNOWLEDGED if accepted else NOT_ACKNOWLEDGED)


def main(folder, mode):
    sites, work = Sites("site-1"), folder / "work"
    first, second = (sites.envelope("site-1", task, upload(1)) for task in ("may", "june"))
    states = []
    with closing(sites.store(folder / "whole")) as store:
        for blob in (first, second):
            store.receive(blob)
            states.append(fedran.encode(store.aggregator))
    with closing(sites.store(folder / "start")) as store:
        store.receive(first)
    number, outcome = 0, None
    while outcome != NOTHING_FAILED:
        number += 1
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(folder / "start", work)
        child = os.fork()
        if not child:
            attempt(sites, work, second, number, mode)
        outcome = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        killed = outcome == -9
        assert killed == (mode == "kill") or outcome == NOTHING_FAILED, (number, outcome)
        with closing(sites.store(work)) as store:
            assert verify(store.database) == [], number
            found = states.index(fedran.encode(store.aggregator))
            assert killed or found == 1, number  # the child sent it a second time
            store.receive(second)
            assert fedran.encode(store.aggregator) == states[1], number
    print(number - 1)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
