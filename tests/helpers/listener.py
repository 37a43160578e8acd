"""Reporters for tests of sweeps: one records every call, one interrupts the sweep."""


class Listener:
    """A reporter that records every call."""

    def __init__(self):
        self.planned, self.skipped, self.workers, self.heard = [], 0, 0, []

    def begin(self, planned, skipped, workers):
        self.planned, self.skipped, self.workers = list(planned), skipped, workers

    def __getattr__(self, name):
        if name not in ("learn", "start", "step", "task_done", "finished", "failed", "note"):
            raise AttributeError(name)
        return lambda *what: self.heard.append((name, *what))

    def of(self, kind):
        return [h[1:] for h in self.heard if h[0] == kind]


class Stopper(Listener):
    """A reporter that raises KeyboardInterrupt at the n-th call of one kind."""

    def __init__(self, kind, at):
        super().__init__()
        self.kind, self.at = kind, at

    def __getattr__(self, name):
        heard = super().__getattr__(name)
        return self.stop_or(heard) if name == self.kind else heard

    def stop_or(self, heard):
        def call(*what):
            self.at -= 1
            if self.at < 0:
                raise KeyboardInterrupt
            heard(*what)

        return call
