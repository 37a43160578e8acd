"""Fixtures for tests of runs and sweeps."""

import os
import sys
import textwrap

import pytest

from fedran_bench.run.config import load_config
from fedran_bench.run.runner import PreparedJob, run
from helpers.bench.small_sweep import CONFIG, TWO_METHODS
from helpers.bench.wanderer import Wanderer, toy_dataset, toy_stream


@pytest.fixture
def config(tmp_path, monkeypatch):
    """Writes c.toml into an empty working folder and loads it."""
    monkeypatch.chdir(tmp_path)

    def write(text=CONFIG, *overrides):
        (tmp_path / "c.toml").write_text(text)
        return load_config(tmp_path / "c.toml", overrides)

    return write


@pytest.fixture
def two_methods(config):
    """``config`` with one stream and two methods by default."""

    def write(text=TWO_METHODS, *overrides):
        return config(text, *overrides)

    return write


@pytest.fixture(scope="module")
def dataset():
    return toy_dataset()


@pytest.fixture(scope="module")
def stream(dataset):
    return toy_stream(dataset)


@pytest.fixture(scope="module")
def result(dataset, stream):
    return run(PreparedJob("wanderer", Wanderer(), dataset, stream, seed=2))


@pytest.fixture
def patched_processes(tmp_path, monkeypatch):
    """Runs some code at the start of every process that is started from now on."""

    def patch(code):
        folder = tmp_path / "site"
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(textwrap.dedent(code))
        path = os.pathsep.join([str(folder), *sys.path])
        monkeypatch.setenv("PYTHONPATH", path)

    return patch
