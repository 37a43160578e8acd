"""Fixtures for tests of runs and sweeps."""

import pytest

from fedran.bench.run.config import load_config
from fedran.bench.run.runner import Run, run
from helpers.small_sweep import CONFIG
from helpers.wanderer import Wanderer, toy_dataset, toy_stream


@pytest.fixture
def config(tmp_path, monkeypatch):
    """Writes c.toml into an empty working folder and loads it."""
    monkeypatch.chdir(tmp_path)

    def write(text=CONFIG, *overrides):
        (tmp_path / "c.toml").write_text(text)
        (tmp_path / "broken.safetensors").write_text("no weights")
        return load_config(tmp_path / "c.toml", overrides)

    return write


@pytest.fixture(scope="module")
def dataset():
    return toy_dataset()


@pytest.fixture(scope="module")
def stream(dataset):
    return toy_stream(dataset)


@pytest.fixture(scope="module")
def result(dataset, stream):
    return run(Run("wanderer", Wanderer(), dataset, stream, seed=2))
