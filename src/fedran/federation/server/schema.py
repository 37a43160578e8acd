"""The files of a store, and the tables of its database."""

FILE = "store.db"
SNAPSHOTS = "snapshot-*.fedran"
MIGRATIONS = (
    """
    CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL, crc INTEGER NOT NULL);
    CREATE TABLE envelopes (sha256 TEXT PRIMARY KEY, content BLOB NOT NULL);
    CREATE TABLE uploads (
        number INTEGER PRIMARY KEY, client TEXT NOT NULL, task TEXT NOT NULL,
        digest TEXT NOT NULL, at REAL NOT NULL, bytes INTEGER NOT NULL, rows INTEGER NOT NULL,
        energy REAL NOT NULL, cut REAL NOT NULL, revision INTEGER NOT NULL, classes TEXT NOT NULL,
        members TEXT NOT NULL, envelope TEXT NOT NULL UNIQUE REFERENCES envelopes (sha256),
        crc INTEGER NOT NULL, UNIQUE (client, task)
    );
    CREATE TABLE quarantine (
        client TEXT NOT NULL, task TEXT NOT NULL, digest TEXT NOT NULL, at REAL NOT NULL,
        reason TEXT NOT NULL, envelope TEXT NOT NULL UNIQUE REFERENCES envelopes (sha256),
        crc INTEGER NOT NULL, PRIMARY KEY (client, task)
    );
    CREATE TABLE tombstones (
        client TEXT NOT NULL, task TEXT NOT NULL, digest TEXT NOT NULL, at REAL NOT NULL,
        who TEXT NOT NULL, crc INTEGER NOT NULL, PRIMARY KEY (client, task, digest)
    );
    CREATE TABLE records (
        number INTEGER PRIMARY KEY, at REAL NOT NULL, content TEXT NOT NULL, crc INTEGER NOT NULL
    );
    CREATE TABLE heads (
        number INTEGER PRIMARY KEY, at REAL NOT NULL, task TEXT NOT NULL, digest TEXT NOT NULL,
        classes INTEGER NOT NULL, bytes INTEGER NOT NULL, accuracy REAL, seconds REAL NOT NULL,
        last_upload INTEGER NOT NULL, crc INTEGER NOT NULL
    );
    CREATE TABLE tasks (
        number INTEGER PRIMARY KEY, task TEXT NOT NULL UNIQUE, state TEXT NOT NULL,
        opened REAL NOT NULL, deadline REAL NOT NULL, min_clients INTEGER NOT NULL,
        asked TEXT NOT NULL, missing TEXT NOT NULL, crc INTEGER NOT NULL
    );
    CREATE TABLE runs (
        run TEXT PRIMARY KEY, task TEXT NOT NULL, status TEXT NOT NULL, received INTEGER NOT NULL,
        sent INTEGER NOT NULL, crc INTEGER NOT NULL
    );
    CREATE TABLE seen (client TEXT PRIMARY KEY, at REAL NOT NULL, crc INTEGER NOT NULL);
    CREATE TABLE nodes (
        client TEXT PRIMARY KEY, node TEXT NOT NULL UNIQUE, key TEXT NOT NULL, crc INTEGER NOT NULL
    );
    CREATE TABLE served (node TEXT PRIMARY KEY, crc INTEGER NOT NULL);
    CREATE TABLE events (
        number INTEGER PRIMARY KEY, at REAL NOT NULL, event TEXT NOT NULL,
        outcome TEXT NOT NULL, fields TEXT NOT NULL, crc INTEGER NOT NULL
    );
    """,
    """
    CREATE TABLE rejected (
        client TEXT NOT NULL, task TEXT NOT NULL, digest TEXT NOT NULL, at REAL NOT NULL,
        reason TEXT NOT NULL, crc INTEGER NOT NULL, PRIMARY KEY (client, task, digest)
    )
    """,
    """
    CREATE TABLE ledger (
        number INTEGER PRIMARY KEY, at REAL NOT NULL, task TEXT NOT NULL,
        attempt INTEGER NOT NULL, epsilon REAL NOT NULL, delta REAL NOT NULL,
        sites TEXT NOT NULL, crc INTEGER NOT NULL, UNIQUE (task, attempt)
    )
    """,
)
"""``MIGRATIONS[v]`` changes a database of schema version v into one of version v + 1."""
