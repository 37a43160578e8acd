"""The server's state from time to time, so that a restart need not replay the whole journal."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path

from fedran.core.aggregator import Aggregator
from fedran.core.errors import Refused
from fedran.federation.protocol.identity import UploadId
from fedran.wire.files import load, save, write_atomically

log = logging.getLogger(__name__)
KEPT = 2


@dataclass
class State:
    """All that the uploads so far amount to."""

    aggregator: Aggregator
    energies: list[float]
    """Mean row energy of each upload, in their order."""
    covered: dict[UploadId, UploadId]
    """Members of forwarded sums -> the sum that holds them."""


class Snapshots:
    """``snapshot-N.fedran`` after N records of the journal, with its notes in ``.json``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, count: int, state: State) -> None:
        """One more; the newest two are kept."""
        path = self.folder / f"snapshot-{count:010d}.fedran"
        notes = {
            "energies": state.energies,
            "covered": [[list(m), list(k)] for m, k in state.covered.items()],
        }
        # The notes first: where the aggregator's file is, they are too.
        write_atomically(path.with_suffix(".json"), json.dumps(notes).encode())
        save(state.aggregator, path)
        for old in self._paths()[:-KEPT]:
            old.unlink()
            old.with_suffix(".json").unlink(missing_ok=True)

    def newest(self, records: int) -> tuple[int, State] | None:
        """The newest one that is whole, and after how many of the journal's records it is.

        A damaged one is no loss: an older one, or the journal alone, gives the same state.
        """
        for path in reversed(self._paths()):
            count = int(path.stem.removeprefix("snapshot-"))
            if count > records:
                raise Refused(
                    f"{path}",
                    f"a journal of at least {count} records",
                    records,
                    hint="the journal is older than the snapshot; restore both from one backup",
                )
            try:
                return count, _read(path)
            except (OSError, ValueError, KeyError, TypeError, IndexError) as reason:
                log.warning("%s is damaged, going back further: %s", path.name, reason)
        return None

    def _paths(self) -> list[Path]:
        return sorted(self.folder.glob("snapshot-*.fedran"))


def _read(path: Path) -> State:
    notes = json.loads(path.with_suffix(".json").read_bytes())
    covered = {(m[0], m[1]): (k[0], k[1]) for m, k in notes["covered"]}
    return State(load(path, Aggregator), notes["energies"], covered)
