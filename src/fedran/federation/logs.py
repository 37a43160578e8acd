"""Readable lines in ``log/fedran.log``: of the server or the site, whatever process writes them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
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
    for old in [h for h in logger.handlers if isinstance(h, logging.FileHandler)]:
        logger.removeHandler(old)
        old.close()
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(_Readable(LINE, "%Y-%m-%d %H:%M:%S"))
    path.chmod(0o600)
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    return path


class Tail:
    """Lines that were added to a file since the last look."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.position = path.stat().st_size if path.is_file() else 0
        self.rest = ""

    def lines(self) -> Iterator[str]:
        """Whole new lines; a file that was put by is read from its start."""
        if not self.path.is_file():
            return
        if self.path.stat().st_size < self.position:
            self.position, self.rest = 0, ""
        with self.path.open(encoding="utf-8", errors="replace") as file:
            file.seek(self.position)
            text = self.rest + file.read()
            self.position = file.tell()
        *whole, self.rest = text.split("\n")
        yield from whole
