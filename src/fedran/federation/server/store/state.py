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
        self.parts: set[tuple[str, Label]] = set()
        """Clients and their labels."""
        self.fingerprint = settings.features().fingerprint
        self._aggregator = Aggregator(fingerprint=self.fingerprint)
        """Of the first ``_read`` uploads."""
        self._read = 0
        self._at_hand: dict[UploadId, Message] = {}
        """Messages of later uploads, as far as they are in memory."""

    @classmethod
    def load(cls, settings: ServerSettings, database: Database) -> State:
        """The state of a database. One that was made with other features is refused."""
        state, uploads = cls(settings, database), database.uploads()
        for upload in uploads[-1:]:
            held = database.opened(upload).statement.fingerprint
            if held != state.fingerprint.hash:
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
            self.parts.update((upload.client, label) for label, _ in upload.classes)

    def add(self, upload: Upload, message: Message) -> None:
        """Add an upload that was accepted now."""
        if self._read == len(self.uploads):
            self._absorb(upload, message)
        self._note([upload])

    def without(self, keys: Collection[UploadId]) -> State:
        """The state as if these uploads had never come. Points in memory are not read again.

        They are absorbed at the next solve, so that this takes no longer for large messages.
        """
        rest = State(self.settings, self.database)
        rest._note(upload for key, upload in self.uploads.items() if key not in keys)
        held = {**self._at_hand, **self._aggregator.points}
        rest._at_hand = {key: message for key, message in held.items() if key not in keys}
        return rest

    def digest(self, key: UploadId) -> str | None:
        """The digest of the upload that was accepted under this id."""
        return self.uploads[key].digest if key in self.uploads else None

    @property
    def classes(self) -> tuple[Label, ...]:
        """The labels of all uploads."""
        return ordered({label for _, label in self.parts})

    @property
    def aggregator(self) -> Aggregator:
        """The messages of all uploads, in their order."""
        for upload in list(self.uploads.values())[self._read :]:
            held = self._at_hand.pop(upload.key, None)
            self._absorb(upload, self.database.message(upload) if held is None else held)
        return self._aggregator

    def _absorb(self, upload: Upload, message: Message) -> None:
        self._aggregator.absorb(message, client=upload.client, task=upload.task)
        self._read += 1
