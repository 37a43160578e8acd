"""The log file of a server's or site's folder, ``log/fedran.log``: writing and following it."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from logging.handlers import WatchedFileHandler
from pathlib import Path

from fedran.core.errors import printable
from fedran.federation.protocol.limits import MAX_LOG_BYTES

LINE = "%(asctime)s %(levelname)s %(message)s"
FORMAT = "FEDRAN_LOG"
"""Environment variable; "json" gives one JSON object per line. All processes inherit it."""
FIELDS = ("site", "task", "decision", "code", "seconds")
"""What a call may say as ``extra``, and a line in JSON then has as fields of their own."""


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time (UTC), level, message, logger, ``FIELDS`` and an exception."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as JSON."""
        fields = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "message": printable(record.getMessage(), 2000),
            "logger": record.name,
        }
        for name in FIELDS:
            if (value := getattr(record, name, None)) is not None:
                fields[name] = printable(value, 200) if isinstance(value, str) else value
        if record.exc_info:
            fields["exception"] = printable(self.formatException(record.exc_info), 10_000)
        return json.dumps(fields)


class _OneLineFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        """Escape control characters and indent further lines, so that no text can forge a line."""
        lines = super().format(record).splitlines()
        return "\n    ".join(printable(line, 2000) for line in lines)


def log_file(folder: Path) -> Path:
    """The log file of a folder."""
    return folder / "log" / "fedran.log"


def log_to(folder: Path) -> Path:
    """Send the log of this process to the folder's file. A large file is rotated first."""
    path = log_file(folder)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if path.is_file() and path.stat().st_size > MAX_LOG_BYTES:
        path.replace(path.with_suffix(".log.1"))
    logger = logging.getLogger("fedran")
    for old in [h for h in logger.handlers if isinstance(h, WatchedFileHandler)]:
        logger.removeHandler(old)
        old.close()
    handler = WatchedFileHandler(path, encoding="utf-8")  # another process may rotate the file
    text = _OneLineFormatter(LINE, "%Y-%m-%d %H:%M:%S")
    handler.setFormatter(JsonFormatter() if os.environ.get(FORMAT) == "json" else text)
    path.chmod(0o600)
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    return path


class Tail:
    """Follows a file: yields the lines that were added since the last call."""

    def __init__(self, path: Path) -> None:
        self.path = path
        found = path.stat() if path.is_file() else None
        self.inode, self.position = (found.st_ino, found.st_size) if found else (0, 0)

    def lines(self) -> Iterator[str]:
        """Complete new lines. A file that replaced the old one is read from its start."""
        if not self.path.is_file():
            return
        with self.path.open("rb") as file:
            found = os.fstat(file.fileno())
            if found.st_ino != self.inode or found.st_size < self.position:
                self.inode, self.position = found.st_ino, 0
            file.seek(self.position)
            *whole, rest = file.read().split(b"\n")
            self.position = file.tell() - len(rest)
        yield from (line.decode(errors="replace") for line in whole)
