"""Accepted uploads in the order of their acceptance: appended, synced, replayed."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from fedran.core.errors import Refused
from fedran.wire.files import sync_folder

log = logging.getLogger(__name__)
MAGIC = b"fedranJ1"
HEADER = 8 + 32 + 4
"""Length of a record, SHA-256 of its contents, CRC-32 of both."""


class Journal:
    """A file of records; what ``append`` returned from is on disk, whatever happens next.

    A last record that is not whole was cut off by a crash and never acknowledged: it is moved to
    ``journal.torn`` when the file is opened, with a warning (a disk that altered the last record
    looks the same). Damage anywhere else is refused.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.failed = False
        new = not self.path.exists()
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            if new or os.fstat(self._file).st_size < len(MAGIC):
                os.ftruncate(self._file, 0)
                _write(self._file, MAGIC)
                os.fsync(self._file)
                sync_folder(self.path.parent)
            self.count, self.end, self.removed = self._scan()
        except BaseException:
            os.close(self._file)
            raise

    def append(self, record: bytes) -> int:
        """Write a record and wait until it is on disk; its number.

        Where that fails (a full disk), the file is as it was and the error is raised.
        """
        if self.failed:
            raise OSError(
                f"{self.path}: an earlier failure could not be undone; restart the server"
            )
        try:
            _write(self._file, _header(record))
            _write(self._file, record)
            os.fsync(self._file)
        except OSError:
            self.failed = True
            os.ftruncate(self._file, self.end)
            os.fsync(self._file)
            self.failed = False
            raise
        self.end += HEADER + len(record)
        self.count += 1
        return self.count - 1

    def records(self, start: int = 0) -> Iterator[bytes]:
        """All records from number ``start`` on, one at a time in memory."""
        with self.path.open("rb") as file:
            file.seek(len(MAGIC))
            for number in range(self.count):
                head = file.read(HEADER)
                length = int.from_bytes(head[:8], "little")
                if number < start:
                    file.seek(length, os.SEEK_CUR)
                    continue
                record = file.read(length)
                if hashlib.sha256(record).digest() != head[8:40]:
                    raise self._damaged(number)
                yield record

    def close(self) -> None:
        """Nothing is lost without it."""
        os.close(self._file)

    def _scan(self) -> tuple[int, int, int]:
        """Records, the end of the last whole one, and bytes removed behind it."""
        size = os.fstat(self._file).st_size
        with self.path.open("rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                raise Refused(str(self.path), "a fedran journal", "another file")
            count, end = 0, len(MAGIC)
            while end < size and self._whole(file, count, end, size):
                end = file.tell()
                count += 1
        if end < size:
            self._put_by(end)
            os.ftruncate(self._file, end)
            os.fsync(self._file)
        return count, end, size - end

    def _put_by(self, start: int) -> None:
        torn = self.path.with_suffix(".torn")
        log.warning("%s: its end was not whole; it is now in %s", self.path, torn.name)
        with self.path.open("rb") as file, torn.open("wb") as copy:
            file.seek(start)
            shutil.copyfileobj(file, copy)

    def _whole(self, file: BinaryIO, number: int, start: int, size: int) -> bool:
        """Read one record; False for one that a crash cut off, an error for a damaged one."""
        head = file.read(HEADER)
        if len(head) < HEADER:
            return False
        if zlib.crc32(head[:40]).to_bytes(4, "little") != head[40:]:
            file.seek(start)
            if all(not any(part) for part in _parts(file, size - start)):
                return False  # the length of the file reached the disk, its contents did not
            raise self._damaged(number)
        length = int.from_bytes(head[:8], "little")
        end = start + HEADER + length
        if end > size:
            return False
        sha = hashlib.sha256()
        for part in _parts(file, length):
            sha.update(part)
        if sha.digest() == head[8:40]:
            return True
        if end == size:
            return False  # the last record: not all of it reached the disk
        raise self._damaged(number)

    def _damaged(self, number: int) -> Refused:
        return Refused(
            f"{self.path}: record {number}",
            "what was written",
            "something else",
            hint="the disk altered it; restore the folder from a backup",
        )


def _header(record: bytes) -> bytes:
    head = len(record).to_bytes(8, "little") + hashlib.sha256(record).digest()
    return head + zlib.crc32(head).to_bytes(4, "little")


def _parts(file: BinaryIO, length: int) -> Iterator[bytes]:
    """The next ``length`` bytes, a MiB at a time."""
    while length:
        part = file.read(min(length, 2**20))
        if not part:
            return
        yield part
        length -= len(part)


def _write(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
