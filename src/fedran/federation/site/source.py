"""Where a site's rows come from: a folder or a function, named in its own configuration only."""

from __future__ import annotations

import importlib
import logging
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedran.core.aggregator import check_id
from fedran.core.errors import Refused
from fedran.core.labels import encode_labels

log = logging.getLogger(__name__)
UNLABELLED = ""
"""A label that stands for a missing one, in files whose arrays cannot hold None."""
UNREADABLE = (ValueError, OSError, EOFError, NotImplementedError, zipfile.BadZipFile, zlib.error)
"""What NumPy raises for files that are none of its own, or torn."""


@dataclass(frozen=True)
class TaskData:
    """Rows of one task: features (n, d), or images (n, height, width, 3) in uint8; labels."""

    X: NDArray[Any]
    y: list[Any]
    """None where a label is missing."""

    def __post_init__(self) -> None:
        images = self.X.ndim == 4 and self.X.dtype == np.uint8 and self.X.shape[3] == 3
        if self.X.ndim != 2 and not images:
            raise Refused(
                "rows",
                "features (n, d) or images (n, height, width, 3) in uint8",
                f"{self.X.dtype} {self.X.shape}",
            )
        if len(self.y) != len(self.X):
            raise Refused("labels", f"{len(self.X)}, one a row", len(self.y))
        encode_labels(self.y, len(self.X))  # refuses what is no label

    @property
    def is_images(self) -> bool:
        """Whether a backbone must run first."""
        return self.X.ndim == 4


class Source(Protocol):
    """Rows of a task; FileNotFoundError while there are none yet."""

    def __call__(self, task: str) -> TaskData:
        """The rows of one task."""
        ...


class FolderSource:
    """``FOLDER/TASK.npz`` with ``features`` or ``images``, and ``labels``.

    The task's name comes from the server, so it is checked: it cannot leave the folder. What is
    wrong is told to the server, so it names the file and not the folder.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise FileNotFoundError(f"{self.folder}: no such folder; expected the site's data")

    def __call__(self, task: str) -> TaskData:
        """The rows in the task's file."""
        path = self.folder / f"{check_id(task, 'task')}.npz"
        if not path.is_file():
            raise FileNotFoundError(f"{path.name}: no rows for task {task} yet")
        return read_rows(path)


def read_rows(path: Path) -> TaskData:
    """The rows of an ``.npz`` file with ``features`` or ``images``, and ``labels``."""
    try:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            names = [n for n in ("features", "images") if n in file.files]
            if len(names) != 1 or "labels" not in file.files:
                expected = "arrays labels and one of features, images"
                raise Refused(path.name, expected, ", ".join(file.files))
            X, y = file[names[0]], file["labels"]
    except Refused:
        raise
    except UNREADABLE as reason:
        log.warning("%s: %s", path, reason)
        raise Refused(path.name, "an .npz file", type(reason).__name__) from None
    return TaskData(X, [_label(v) for v in np.atleast_1d(y).tolist()])


class FunctionSource:
    """``module:function``, called with the task's name; it returns rows and labels.

    FileNotFoundError from it means: no rows yet. Whatever else it raises goes to the site's log,
    and only its kind to the server: the text may hold what must not leave the site.
    """

    def __init__(self, entry: str) -> None:
        module, colon, name = entry.partition(":")
        if not colon or not module or not name:
            raise Refused("entry", "module:function", entry)
        try:
            found = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as reason:
            raise Refused("entry", f"a function {name} in {module}", str(reason)) from None
        except MemoryError:
            raise
        except (Exception, SystemExit) as reason:
            raise _failed(entry, "a module that can be imported", reason) from None
        if not callable(found):
            raise Refused("entry", "a function", type(found).__name__)
        self.entry, self.function = entry, found

    def __call__(self, task: str) -> TaskData:
        """What the function returns for the task."""
        check_id(task, "task")
        try:
            found = self.function(task)
        except FileNotFoundError as reason:
            log.info("%s: %s", self.entry, reason)
            raise FileNotFoundError(f"{self.entry}: no rows for task {task} yet") from None
        except MemoryError:
            raise
        except (Exception, SystemExit) as reason:
            raise _failed(self.entry, "rows and labels", reason) from None
        if not isinstance(found, tuple) or len(found) != 2:
            raise Refused(self.entry, "a pair of rows and labels", type(found).__name__)
        X, y = found
        return TaskData(np.asarray(X), [_label(v) for v in list(y)])


def make_source(*, folder: str | None = None, entry: str | None = None) -> Source:
    """The source that a site's configuration names."""
    require_one(folder, entry)
    return FolderSource(folder) if folder is not None else FunctionSource(entry or "")


def require_one(folder: str | None, entry: str | None) -> None:
    """Refuse both and neither."""
    if (folder is None) == (entry is None):
        raise Refused("data", "either folder or entry", "both" if folder else "neither")


def _failed(entry: str, expected: str, reason: BaseException) -> Refused:
    log.error("%s failed", entry, exc_info=reason)
    return Refused(entry, expected, type(reason).__name__, hint="the site's log says more")


def _label(value: Any) -> Any:
    missing = isinstance(value, float) and value != value
    return None if missing or (isinstance(value, str) and value == UNLABELLED) else value
