"""Save objects to files and load them; crash-safe writing for every other room."""

from __future__ import annotations

import errno
import json
import os
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, overload

from fedran.core.errors import Refused
from fedran.core.points import Points
from fedran.core.solve.head import Head
from fedran.core.summary import Summary
from fedran.wire.codec import DEFAULT_BITS, Encodable, Kind, check_options, decode_container, encode
from fedran.wire.container import Container, unpack
from fedran.wire.points_codec import DEFAULT_STEP
from fedran.wire.validation import DEFAULT_LIMITS, FILE_LIMITS, Limits


def write_atomically(path: str | Path, data: bytes) -> None:
    """Replace a file. After a crash it holds either the old bytes or all of the new ones."""
    with atomic_writer(path) as file:
        file.write(data)


@contextmanager
def atomic_writer(path: str | Path) -> Iterator[BinaryIO]:
    """A temporary file that replaces ``path`` when the block ends without an exception.

    Its bytes are synced to disk before it is renamed. A link stays, and its target is replaced.
    Devices and pipes are refused: renaming a file to ``/dev/stdout`` would remove the device.
    """
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "Is a directory", str(path))
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "Not a regular file", str(path))
    if path.is_symlink():
        path = path.resolve()
    if not path.parent.is_dir():
        raise FileNotFoundError(f"cannot write {path}: the folder {path.parent} does not exist")
    try:
        handle, temporary = tempfile.mkstemp(".part", f".{path.name}.", path.parent)
    except OSError as reason:  # it names the temporary file
        raise OSError(reason.errno, reason.strerror, str(path)) from None
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    sync_folder(path.parent)  # the rename must reach the disk too


def sync_folder(folder: str | Path) -> None:
    """Wait until the directory entries of a folder are on disk (POSIX systems only)."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def require_file(path: str | Path, what: str) -> Path:
    """The path of an existing file. ``what`` describes the expected content in the error."""
    path = Path(path)
    if not path.is_file():
        found = "this is a folder" if path.is_dir() else "no such file"
        if path.exists() and not path.is_dir():
            found = "this is a pipe or a device, which cannot be read twice"
        raise FileNotFoundError(f"{path}: {found}; expected {what}")
    return path


def read_json_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file, or an empty one if the file is missing or damaged."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def read_toml(path: str | Path, what: str) -> dict[str, Any]:
    """The tables of a TOML file. ``what`` describes the file in error messages."""
    path = require_file(path, f"{what} (.toml)")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as reason:
        raise ValueError(f"{path}: not valid TOML: {reason}") from None
    except RecursionError:
        raise ValueError(f"{path}: not valid TOML: nested too deeply") from None


@contextmanager
def refusals_name_file(path: str | Path) -> Iterator[None]:
    """Add the file name to every ``Refused`` that is raised in the block."""
    try:
        yield
    except Refused as reason:
        raise Refused(f"{path}: {reason.field}", reason.expected, reason.got, reason.hint) from None


def read_container(
    path: str | Path, kind: type | None, limits: Limits | None
) -> tuple[Container, Limits]:
    """The verified contents of a file and the limits that apply to them.

    Without ``limits``, an aggregator may be as large as a server's state, while messages and
    heads have the limits of ``decode``. The size is checked before the file is read.
    """
    path = Path(path)
    allowed = limits or (DEFAULT_LIMITS if kind in (Points, Summary, Head) else FILE_LIMITS)
    size = path.stat().st_size
    if size > allowed.message:
        raise Refused("file", f"at most {allowed.message} bytes", size)
    blob = path.read_bytes()
    message = unpack(blob, allowed)
    if limits is None and message.kind != "aggregator":
        return unpack(blob, DEFAULT_LIMITS), DEFAULT_LIMITS
    return message, allowed


def save(
    obj: Encodable,
    path: str | Path,
    precision: str | None = None,
    *,
    bits: float = DEFAULT_BITS,
    step: float = DEFAULT_STEP,
) -> int:
    """Write points, a summary, a head or an aggregator to a file and return the number of bytes.

    The file holds the bytes of ``encode`` with the same options. After a crash it holds either
    the old content or the complete new one. Only its owner can read it (mode 0600, on systems
    that have file modes).
    """
    data = encode(obj, precision, bits=bits, step=step)
    write_atomically(path, data)
    return len(data)


@overload
def load(
    path: str | Path, kind: None = ..., *, limits: Limits | None = ..., device: str | None = ...
) -> Encodable: ...
@overload
def load(
    path: str | Path, kind: type[Kind], *, limits: Limits | None = ..., device: str | None = ...
) -> Kind: ...
def load(
    path: str | Path,
    kind: type | None = None,
    *,
    limits: Limits | None = None,
    device: str | None = None,
) -> Encodable:
    """Read points, a summary, a head or an aggregator that ``save`` wrote.

    Takes the options of ``decode`` and makes the same checks. A refusal names the file. Without
    ``limits``, messages and heads have the limits of ``decode``; an aggregator may be larger.
    """
    check_options(kind, limits)
    with refusals_name_file(path):
        message, allowed = read_container(path, kind, limits)
        return decode_container(message, kind, allowed, device)


def folder_bytes(folder: Path) -> int:
    """Bytes of all files below a folder. Files may appear and disappear meanwhile."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:
            continue
    return total
