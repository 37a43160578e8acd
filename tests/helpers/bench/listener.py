"""Reporters for tests of sweeps: one records every call, one interrupts the sweep."""

from fedran_bench.run.progress import Reporter


class Listener(Reporter):
    """A reporter that records every call."""

    def __init__(self):
        self.planned, self.skipped, self.heard = [], 0, []

    def begin(self, todo, skipped):
        self.planned, self.skipped = list(todo), skipped

    def hear(self, kind, *what):
        self.heard.append((kind, *what))

    def of(self, kind):
        return [h[1:] for h in self.heard if h[0] == kind]


def _recorded(kind):
    def call(self, *what):
        self.hear(kind, *what)

    return call


for _kind in ("start", "step", "finished", "failed", "note"):
    setattr(Listener, _kind, _recorded(_kind))


class Stopper(Listener):
    """A reporter that raises KeyboardInterrupt at the n-th call of one kind."""

    def __init__(self, kind, at):
        super().__init__()
        self.kind, self.at = kind, at

    def hear(self, kind, *what):
        self.at -= kind == self.kind
        if self.at < 0:
            raise KeyboardInterrupt
        super().hear(kind, *what)
