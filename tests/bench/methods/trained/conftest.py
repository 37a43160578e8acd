"""Everything here needs PyTorch, except the test of its absence."""

import importlib.util

import pytest

from helpers.bench.toy_training import make_images

if importlib.util.find_spec("torch") is None:
    collect_ignore_glob = ["training/*", "test_fed*.py", "test_target.py"]


@pytest.fixture(scope="session")
def dataset():
    return make_images()
