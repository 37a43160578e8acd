"""What a run tells while it goes on: one event per finished task."""

from __future__ import annotations

from dataclasses import dataclass

from fedran.wire.sizes import human_bytes


@dataclass(frozen=True)
class TaskDone:
    """The figures of a task right after it was tested."""

    task: int
    """From 1 to ``tasks``."""
    tasks: int
    accuracy: float
    """A_t: accuracy over all classes seen so far, in percent."""
    upload: int
    """The largest upload of a client in this task, bytes."""
    seconds: float
    """Mean client plus server."""

    def __str__(self) -> str:
        return (
            f"task {self.task} of {self.tasks}: accuracy {self.accuracy:.2f}, "
            f"upload {human_bytes(self.upload)}, {self.seconds:.3g} s"
        )
