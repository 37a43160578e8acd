"""The apps of server and sites in Flower's simulation engine: real Ray, no SuperNodes."""

import os

import pytest

pytest.importorskip("ray")

from fedran.federation.ops import tasks
from helpers.federation.real_federation import Federation


@pytest.mark.waits
@pytest.mark.skipif(os.name != "posix", reason="the federation runs on Linux")
def test_every_site_of_a_folder_takes_part_in_a_simulation(tmp_path):
    fed = Federation(tmp_path / "many", sites=4)
    (done,) = tasks.simulate(fed.folder, ["task-1"], say=fed.said.append)
    assert done.state == "complete", fed.logs()
    names = [f"site-{i}" for i in range(1, 5)]
    assert sorted(e["client"] for e in fed.events("upload", outcome="accepted")) == names
    for name in names:
        assert fed.outbox(name).receipt("task-1").settled  # a slow site may be asked twice
        assert fed.accuracy(name) > 0.95


@pytest.mark.faults
def test_secure_sums_in_a_simulation(tmp_path):
    fed = Federation(tmp_path / "many", sites=8, privacy="secure")
    fed.set_server(out_features=1024, sketch=64)
    (done,) = tasks.simulate(fed.folder, ["task-1"], say=fed.said.append)
    assert done.state == "complete", fed.logs()
    (event,) = fed.events("upload", outcome="accepted")
    assert (event["client"], event["members"]) == ("cohort-1", 8)
    assert all(fed.accuracy(f"site-{i}") > 0.95 for i in range(1, 9))


def test_a_simulation_without_sites_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="no sites; create them with `init`"):
        tasks.simulate(tmp_path, ["may"], say=print)
