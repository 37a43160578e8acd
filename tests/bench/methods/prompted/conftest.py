"""Everything here needs PyTorch."""

import importlib.util

import pytest

from helpers.bench.toy_training import make_images

if importlib.util.find_spec("torch") is None:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def dataset():
    return make_images()
