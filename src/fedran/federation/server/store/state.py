"""What follows from the accepted uploads: their messages, and their classes.

All of it is rebuilt from the database. Messages are read when a head is solved, not when the store
is opened.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from fedran.core.errors import Refused
from fedran.core.labels import Label, ordered
from fedran.core.sums.aggregator import Aggregator, Message
from fedran.federation.protocol.identity import UploadId
from fedran.federation.server.settings import ServerSettings
from fedran.federation.server.store.database import Database
from fedran.federation.server.store.schema import Upload


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
        for upload in list(self.uploads.values())[self._read :]:
            self._absorb(upload, self.database.message(upload))
        return self._aggregator

    def check(self, message: Message, key: UploadId) -> None:
        """Refuse a message that cannot be absorbed, whatever the others are."""
        empty = Aggregator(fingerprint=self._aggregator.fingerprint)
        empty.check(message, client=key[0], task=key[1])

    def _absorb(self, upload: Upload, message: Message) -> None:
        self._aggregator.absorb(message, client=upload.client, task=upload.task)
        self._read += 1
