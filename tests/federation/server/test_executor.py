"""The server runs only the installed app, whatever app a run brings."""

import pytest

pytest.importorskip("flwr")

from flwr.cli.build import build_fab_from_files

from fedran.core.errors import Refused
from fedran.federation.ops import flower
from fedran.federation.server import executor

OURS = flower.APP_TEXT.encode()
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Flower's libraries


@pytest.mark.parametrize("ours", [True, False])
def test_the_app_of_a_run_is_checked_and_never_loaded(ours, monkeypatch, caplog):
    """Flower's own function for a run, with its connection replaced."""
    task, steps = executor.flower_task, []
    changed = {"pyproject.toml": OURS if ours else OURS.replace(b"server.app", b"evil.app")}
    fab = build_fab_from_files(changed)[0]

    def run(address, queue, token, insecure, authority, parent, **how):
        steps.append((token, insecure, how))
        task.install_from_fab(fab, skip_prompt=True)
        steps.append(task.run_(grid="grid", context="context", server_app_attr="evil:app"))

    monkeypatch.setattr(task, "install_from_fab", lambda fab, **_: steps.append("installed"))
    monkeypatch.setattr(task, "run_", None.__init__)
    monkeypatch.setattr(task, "run_serverapp", run)
    monkeypatch.setattr(executor, "app", lambda grid, context: steps.append((grid, context)))
    if ours:
        executor.run_task("127.0.0.1:1", "token", b"authority")
        assert steps[1:] == ["installed", ("grid", "context"), "context"]
    else:
        with pytest.raises(Refused, match="evil"):
            executor.run_task("127.0.0.1:1", "token", b"authority")
        assert "ALARM: a run brought an app that is not fedran's" in caplog.text
        assert len(steps) == 1
    assert steps[0] == ("token", False, {"runtime_dependency_install": False})


def test_a_version_of_flower_without_these_steps_runs_nothing(monkeypatch):
    monkeypatch.delattr(executor.flower_task, "run_")
    with pytest.raises(NotImplementedError, match="foreign apps could not be refused"):
        executor.run_task("127.0.0.1:1", "token", None)
