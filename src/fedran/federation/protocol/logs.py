"""Readable lines in ``log/fedran.log``: of the server or the site, whatever process writes them."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from logging.handlers import WatchedFileHandler
from pathlib import Path

from fedran.core.errors import printable

LINE = "%(asctime)s %(levelname)s %(message)s"
ROTATE_BYTES = 5 * 2**20


class _Readable(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        """Foreign text may hold line breaks and control characters: they cannot forge a line."""
        lines = super().format(record).splitlines()
        return "\n    ".join(printable(line, 2000) for line in lines)


def log_file(folder: Path) -> Path:
    """Where the lines of a server's or site's folder go."""
    return folder / "log" / "fedran.log"


def log_to(folder: Path) -> Path:
    """Send this process's lines to the folder's file; a file that has grown large is put by."""
    path = log_file(folder)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if path.is_file() and path.stat().st_size > ROTATE_BYTES:
        path.replace(path.with_suffix(".log.1"))
    logger = logging.getLogger("fedran")
    for old in [h for h in logger.handlers if isinstance(h, WatchedFileHandler)]:
        logger.removeHandler(old)
        old.close()
    handler = WatchedFileHandler(path, encoding="utf-8")  # another process may put the file by
    handler.setFormatter(_Readable(LINE, "%Y-%m-%d %H:%M:%S"))
    path.chmod(0o600)
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    return path


class Tail:
    """Lines that were added to a file since the last look."""

    def __init__(self, path: Path) -> None:
        self.path = path
        found = path.stat() if path.is_file() else None
        self.file = found.st_ino if found else 0
        self.position = found.st_size if found else 0
        self.rest = b""

    def lines(self) -> Iterator[str]:
        """Whole new lines; a file that took another's place is read from its start."""
        try:
            with self.path.open("rb") as file:
                found = os.fstat(file.fileno())
                if found.st_ino != self.file or found.st_size < self.position:
                    self.file, self.position, self.rest = found.st_ino, 0, b""
                file.seek(self.position)
                data = self.rest + file.read()
                self.position = file.tell()
        except FileNotFoundError:
            return
        *whole, self.rest = data.split(b"\n")
        yield from (line.decode(errors="replace") for line in whole)
