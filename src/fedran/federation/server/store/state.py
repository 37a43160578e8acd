"""What follows from the accepted uploads: their messages, and their classes.

All of it is rebuilt from the database. Points are read when a head is solved, not when the store is
opened. Summaries are added up, which takes long, so their sum is kept in a file as well. The file
lists the digests of its uploads, so that one of another history is noticed.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from pathlib import Path

from fedran.core.errors import Refused
from fedran.core.labels import Label, ordered
from fedran.core.summary import Summary
from fedran.core.sums.aggregator import Aggregator, Message
from fedran.federation.protocol.identity import UploadId
from fedran.federation.server.settings import ServerSettings
from fedran.federation.server.store.database import Database
from fedran.federation.server.store.schema import Upload
from fedran.wire.files import load, save

log = logging.getLogger(__name__)
SUM = "sum.fedran"
"""File beside the database with the sum of all summaries at the last solve."""


class State:
    """The accepted uploads in their order, and what later ones are compared with."""

    def __init__(self, settings: ServerSettings, database: Database) -> None:
        self.settings, self.database = settings, database
        self.uploads: dict[UploadId, Upload] = {}
        self.covered: dict[UploadId, UploadId] = {}
        """Members of secure sums -> the sum that contains them."""
        self._classes: dict[str, set[Label]] = {}
        self._aggregator = Aggregator(fingerprint=settings.features().fingerprint)
        """Of the first ``_read`` uploads."""
        self._read = 0
        self._may_load = True
        self._saved = 0

    @classmethod
    def load(cls, settings: ServerSettings, database: Database) -> State:
        """The state of a database. One that was made with other features is refused."""
        state, uploads = cls(settings, database), database.uploads()
        for upload in uploads[-1:]:
            held = database.opened(upload).statement.fingerprint
            if held != settings.features().fingerprint.hash:
                raise Refused(
                    "fingerprint",
                    f"the features of the uploads in the store ({held[:12]}...)",
                    "others in server.toml",
                    hint="undo the change of its settings, or begin a new federation",
                )
        state._note(uploads)
        return state

    def _note(self, uploads: Iterable[Upload]) -> None:
        for upload in uploads:
            self.uploads[upload.key] = upload
            self.covered.update(dict.fromkeys(upload.members, upload.key))
            labels = {label for label, _ in upload.classes}
            self._classes.setdefault(upload.client, set()).update(labels)

    def add(self, upload: Upload, message: Message) -> None:
        """Add an upload that was accepted now."""
        if self._read == len(self.uploads):
            self._absorb(upload, message)
        self._note([upload])

    def without(self, keys: Collection[UploadId]) -> State:
        """The state as if these uploads had never come. Points in memory are not read again."""
        rest = State(self.settings, self.database)
        rest._note(upload for key, upload in self.uploads.items() if key not in keys)
        rest._may_load = False
        for key, message in self._aggregator.points.items():
            if key not in keys:
                rest._absorb(self.uploads[key], message)
        return rest

    def digest(self, key: UploadId) -> str | None:
        """The digest of the upload that was accepted under this id."""
        return self.uploads[key].digest if key in self.uploads else None

    @property
    def classes(self) -> tuple[Label, ...]:
        """The labels of all uploads."""
        return ordered(set().union(*self._classes.values()))

    def classes_of(self, client: str) -> set[Label]:
        """The labels of all uploads of a site."""
        return set(self._classes.get(client, ()))

    @property
    def aggregator(self) -> Aggregator:
        """The messages of all uploads, in their order."""
        if self._may_load and not self._read:
            self._load_sum()
        for upload in list(self.uploads.values())[self._read :]:
            self._absorb(upload, self.database.message(upload))
        return self._aggregator

    def check(self, message: Message, key: UploadId) -> None:
        """Refuse a message that cannot be absorbed. Points do not depend on each other."""
        fingerprint = self._aggregator.fingerprint
        if self._aggregator.takes is Summary:
            self.aggregator.check(message, client=key[0], task=key[1])
        else:
            Aggregator(fingerprint=fingerprint).check(message, client=key[0], task=key[1])

    def _absorb(self, upload: Upload, message: Message) -> None:
        self._aggregator.absorb(message, client=upload.client, task=upload.task)
        self._read += 1

    def save_sum(self) -> None:
        """Keep the sum of summaries, so that a restart need not add them again."""
        if self._aggregator.takes is Summary and self._saved != self._read:
            save(self._aggregator, self._file)
            self._saved = self._read

    def delete_sum(self) -> None:
        """Delete the file of the sum, which contains uploads that were removed."""
        self._file.unlink(missing_ok=True)
        self._saved = 0

    def _load_sum(self) -> None:
        self._may_load = False
        if not self._file.is_file():
            return
        try:
            found = load(self._file, Aggregator)
        except (OSError, ValueError) as reason:
            log.warning("%s is damaged, so all uploads are added again: %s", SUM, reason)
            return
        held = [(u.key, u.digest) for u in self.uploads.values()][: len(found.absorbed)]
        if list(found.absorbed.items()) != held:
            log.warning("%s is not of this database's uploads; it is deleted", SUM)
            self.delete_sum()
            return
        self._aggregator, self._read, self._saved = found, len(held), len(held)

    @property
    def _file(self) -> Path:
        return self.database.path.parent / SUM
