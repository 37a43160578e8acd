"""Where a site's rows come from: a folder or a function that its configuration names.

Images become features by the backbone that it names.
"""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedran.core.errors import Refused, check_id
from fedran.data.rows import LABEL, TABLES, Rows, none_if_missing, read_rows
from fedran.federation.site.settings import NAME_LABEL

if TYPE_CHECKING:
    from fedran.backbones.backbone import Backbone

log = logging.getLogger(__name__)
SUFFIXES = (".npz", *TABLES)


class NoRows(FileNotFoundError):
    """There are no rows for a task yet."""


Source = Callable[[str], Rows]
"""From the name of a task to its rows. Raises NoRows while there are none yet."""


class FolderSource:
    """``FOLDER/TASK.npz`` with ``labels``, and ``features`` or ``images``; or a table.

    The server names the task, so the name is checked: it cannot point outside the folder, and
    upper and lower case differ on every disk. Otherwise two tasks could mean the same rows. Errors
    go to the server, so they name the file without its folder.
    """

    def __init__(self, folder: str | Path, label: str = LABEL) -> None:
        self.folder, self.label = Path(folder), label
        if not self.folder.is_dir():
            raise NoRows(f"{self.folder}: no such folder; expected the site's data")

    def __call__(self, task: str) -> Rows:
        """The rows in the file of the task."""
        names = [f"{check_id(task, 'task')}{suffix}" for suffix in SUFFIXES]
        listed = set(os.listdir(self.folder))
        found = [name for name in names if name in listed and (self.folder / name).is_file()]
        if len(found) > 1:
            raise Refused("rows", f"one file for task {task}", f"{', '.join(found)}")
        if not found:
            raise NoRows(f"no rows for task {task} yet")
        return read_rows(self.folder / found[0], self.label, NAME_LABEL)


class FunctionSource:
    """``module:function``, which is called with the name of the task and returns rows and labels.

    FileNotFoundError from it means that there are no rows yet. Any other exception goes to the
    site's log, and only its type to the server, because the text may contain private data.
    """

    def __init__(self, entry: str) -> None:
        module, colon, name = entry.partition(":")
        if not colon or not module or not name:
            raise Refused("entry", "module:function", entry)
        try:
            found = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as reason:
            raise Refused("entry", f"a function {name} in {module}", str(reason)) from None
        except (Exception, SystemExit) as reason:
            raise _failed(entry, "a module that can be imported", reason) from None
        if not callable(found):
            raise Refused("entry", "a function", type(found).__name__)
        self.entry, self.function = entry, found

    def __call__(self, task: str) -> Rows:
        """The rows that the function returns for the task."""
        check_id(task, "task")
        try:
            found = self.function(task)
        except FileNotFoundError as reason:
            log.info("%s: %s", self.entry, reason)
            raise NoRows(f"no rows for task {task} yet") from None
        except (Exception, SystemExit) as reason:
            raise _failed(self.entry, "rows and labels", reason) from None
        if not isinstance(found, tuple) or len(found) != 2:
            raise Refused(self.entry, "a pair of rows and labels", type(found).__name__)
        X, y = found
        names = tuple(getattr(X, "columns", ()))  # of a DataFrame
        named = all(isinstance(name, str) for name in names)
        return Rows(np.asarray(X), none_if_missing(list(y)), names if named else ())


def backbone_loader(spec: str, folder: Path) -> Callable[[], Backbone]:
    """A function that loads a backbone. A relative path is looked up in the site's folder first."""
    kind, colon, name = spec.partition(":")
    local = folder / Path(name).expanduser()

    def load() -> Backbone:
        from fedran.backbones import catalogue

        return catalogue.load_backbone(f"{kind}:{local}" if colon and local.exists() else spec)

    return load


def extract(network: Backbone, images: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Features (n, d) of images (n, height, width, 3), computed in batches."""
    features = np.empty((len(images), network.out_features), np.float32)
    for start in range(0, len(images), network.batch_size):
        rows = slice(start, start + network.batch_size)
        features[rows] = network(np.stack([network.preprocess(image) for image in images[rows]]))
    return features


def _failed(entry: str, expected: str, reason: BaseException) -> Refused:
    log.error("%s failed", entry, exc_info=reason)
    return Refused(entry, expected, type(reason).__name__, hint="the site's log says more")
