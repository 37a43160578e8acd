"""Texts in a column of a table, or one per line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fedran.core.errors import Refused
from fedran.data.images import ItemSet
from fedran.data.rows import LABEL, UNLABELLED, as_labels, is_table, none_if_missing, read_table

LINES = ".txt"
"""Suffix of files with one text per line."""
COLUMN = "text"
"""Name of the column of texts, unless the user names another."""


class Texts:
    """Some texts, which a backbone takes one by one."""

    def __init__(self, texts: list[str]) -> None:
        self.texts = texts

    def __len__(self) -> int:
        return len(self.texts)

    def encoded(self, i: int) -> bytes:
        """Text i in UTF-8."""
        return self.texts[i].encode()

    def text(self, i: int) -> str:
        """Text i."""
        return self.texts[i]


def is_text(path: Path) -> bool:
    """Whether a file may hold texts, by its suffix."""
    return is_table(path) or path.suffix.lower() == LINES


def load_texts(path: Path, column: str = COLUMN, label: str | None = None) -> ItemSet[Texts]:
    """The texts of a file, and their labels from the column ``label``, which need not exist.

    The column is by default ``LABEL``. A label may be missing.
    """
    labels: list[Any] = []
    if is_table(path):
        hint = 'name the column of texts with --column "{}"'
        named = [column] if label is None else [column, label]
        others = read_table(path, named, hint, LABEL, features=False).others
        texts, labels = others[column], others.get(label or LABEL, [])
        labels = as_labels(labels) if path.suffix.lower() == ".csv" else none_if_missing(labels)
    else:
        try:
            texts = path.read_text("utf-8-sig").splitlines()
        except UnicodeDecodeError:
            raise Refused(path.name, "text in UTF-8", "another encoding") from None
    empty = [i for i, text in enumerate(texts) if not isinstance(text, str) or not text.strip()]
    if empty or not texts:
        got = f"none in row {empty[0] + 1}" if empty else "no row"
        raise Refused(path.name, "a text in every row", got, "leave such rows out")
    labels = labels or [None] * len(texts)
    missing = np.nan if all(y is None or isinstance(y, int) for y in labels) else UNLABELLED
    y = np.array([missing if label is None else label for label in labels])
    return ItemSet(path.stem, Texts(texts), y, Texts([]), y[:0])
