"""Writes the database of a small server as SQL, which every later version must open.

    python benchmarks/store_fixture.py

Run it for a release that has another version of the schema (``schema.VERSION``), and keep the files
of earlier releases. A file that is older than its release is replaced.
"""

import sqlite3
import sys
import tempfile
from contextlib import closing
from pathlib import Path

from fedran import __version__
from fedran.federation.protocol.identity import SiteKey
from fedran.federation.server.store.schema import FILE

ROOT = Path(__file__).resolve().parents[1]
TESTS = ROOT / "tests"
FOLDER = TESTS / "federation" / "server" / "store"


def main():
    """Fill a store: three sites, two tasks, a head, a revision, and a site that is forgotten."""
    sys.path.insert(0, str(TESTS))
    from helpers.federation.made_federation import Sites, upload

    sites = Sites("site-1", "site-2", "site-3")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "state"
        with closing(sites.store(folder)) as store:
            for task in ("may", "june"):
                store.open_task(task)
                for client in sites.keys:
                    store.receive(sites.envelope(client, task))
            store.receive(sites.envelope("site-1", "may", upload(9), revision=1))
            store.database.set_task("may", "complete", asked=sorted(sites.keys), min_clients=1)
            said = {"task": "may", "classes": 2, "size": 9, "accuracy": 0.5, "seconds": 1.0}
            store.database.add_head("d" * 64, **said)
            store.database.set_seen("site-1")
            store.forget("site-3", None, "owner", SiteKey.generate())
        with closing(sqlite3.connect(folder / FILE)) as database:
            pragmas = [
                f"PRAGMA {name} = {database.execute(f'PRAGMA {name}').fetchone()[0]};"
                for name in ("application_id", "user_version")
            ]
            lines = [*pragmas, *database.iterdump()]
    path = FOLDER / f"store-{__version__}.sql"
    path.write_text("\n".join(lines) + "\n")
    print(path.relative_to(ROOT), path.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
