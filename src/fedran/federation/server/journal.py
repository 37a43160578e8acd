"""The journal: accepted uploads in order of acceptance, appended, synced and replayed."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from fedran.wire.files import sync_folder

log = logging.getLogger(__name__)
MAGIC = b"fedranJ1"
HEADER = 8 + 32 + 4
"""Length of a record, SHA-256 of its contents, CRC-32 of both."""


class StoreDamaged(OSError):
    """Files of the store are not what was written."""


class Journal:
    """A file of records. After ``append`` returns, the record is on disk.

    An incomplete last record was cut off by a crash and never acknowledged. It is moved to
    ``journal.torn`` with a warning when the file is opened. Damage of the last record by the disk
    looks the same. Damage of any other record raises ``StoreDamaged``.
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
            self.count, self.end = self._scan()
        except BaseException:
            os.close(self._file)
            raise

    def append(self, record: bytes) -> int:
        """Write a record, wait until it is on disk, and return its number.

        If that fails (a full disk), the file is restored and the error is raised.
        """
        if self.failed:
            raise OSError(
                f"{self.path}: an earlier failure could not be undone; restart the server"
            )
        head = len(record).to_bytes(8, "little") + hashlib.sha256(record).digest()
        try:
            _write(self._file, head + zlib.crc32(head).to_bytes(4, "little"))
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
        """Close the file. Nothing is lost without it."""
        os.close(self._file)

    def _scan(self) -> tuple[int, int]:
        """Number of complete records and the end of the last one. An incomplete tail is removed."""
        size = os.fstat(self._file).st_size
        with self.path.open("rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                raise StoreDamaged(f"{self.path}: expected a fedran journal, got another file")
            count, end = 0, len(MAGIC)
            while end < size and self._is_complete(file, count, end, size):
                end = file.tell()
                count += 1
            if end < size:
                torn = self.path.with_suffix(".torn")
                log.warning("%s: the last record is incomplete; moved to %s", self.path, torn.name)
                file.seek(end)
                with torn.open("wb") as copy:
                    shutil.copyfileobj(file, copy)
                os.ftruncate(self._file, end)
                os.fsync(self._file)
        return count, end

    def _is_complete(self, file: BinaryIO, number: int, start: int, size: int) -> bool:
        """Read one record. False if a crash cut it off; ``StoreDamaged`` if it was altered."""
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
            return False  # not all of the last record reached the disk
        raise self._damaged(number)

    def _damaged(self, number: int) -> StoreDamaged:
        return StoreDamaged(
            f"{self.path}: record {number} is not what was written; the disk altered it, restore "
            "the folder from a backup"
        )


def count_records(path: Path) -> int:
    """Number of complete records, read from their headers; 0 without a file.

    For programs beside the server: opening a ``Journal`` would remove the record that the server
    is writing.
    """
    if not path.exists():
        return 0
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if file.read(len(MAGIC)) != MAGIC:
            raise StoreDamaged(f"{path}: expected a fedran journal, got another file")
        count, end = 0, len(MAGIC)
        while len(head := file.read(HEADER)) == HEADER:
            end += HEADER + int.from_bytes(head[:8], "little")
            if zlib.crc32(head[:40]).to_bytes(4, "little") != head[40:] or end > size:
                break
            file.seek(end)
            count += 1
        return count


def _parts(file: BinaryIO, length: int) -> Iterator[bytes]:
    """The next ``length`` bytes in parts of at most one MiB."""
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
