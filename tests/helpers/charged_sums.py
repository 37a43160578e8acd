"""Federations whose private sums fail after they were charged, and what they charged and stored."""

from fedran.core.private.dp import Budget, composed, gaussian_epsilon
from helpers.secure_federation import PrivateFederation, requests_in

EPSILON = 500.0
TWICE = gaussian_epsilon(composed([Budget(EPSILON, 1e-5).mu] * 2), 1e-5)


class Killed(BaseException):
    """The server's process ends."""


def kill(*_):
    raise Killed


def kill_at(stage):
    """A site that answers a stage, and then the server is killed."""

    def tamper(message, answer):
        found = answer()
        return kill() if stage in [r.stage for r in requests_in(message)] else found

    return tamper


def lose_files(federation):
    """The files of the server's attempts are gone."""
    for path in (federation.server / "state" / "sums").iterdir():
        path.unlink()


def made(tmp_path, monkeypatch, n=3, **options):
    federation = PrivateFederation(tmp_path, monkeypatch, n=n, **options)
    federation.write_settings(epsilon=EPSILON)
    return federation


def run(federation, task="may", names=None, **changes):
    return federation.run(task, names, epsilon=EPSILON, min_clients=3, **changes)


def charges(federation):
    return [(c.task, c.attempt, list(c.sites)) for c in federation.learned()[1]]


def cohorts(federation):
    uploads = federation.learned()[2]
    return [(u.key, [client for client, _ in u.members]) for u in uploads]


def gone_after(stage):
    """A site that answers nothing from the request of this stage on, for good."""
    dead = []

    def tamper(message, answer):
        dead.extend(r for r in requests_in(message) if r.stage is stage)
        return None if dead else answer()

    return tamper
