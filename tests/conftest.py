"""Settings for the whole suite."""

import os
import signal

import pytest

from helpers import array_checks

# Before anything imports the core: arrays must have the shapes and dtypes that annotations state.
array_checks.install()

# Before SciPy is imported: scikit-learn's checks then include its array API one.
os.environ.setdefault("SCIPY_ARRAY_API", "1")


# A shell that starts the suite in the background ignores SIGINT, and all children would inherit
# that: programs that tests interrupt would not stop.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items):
    """Tests that mostly wait for other programs start first, beside the tests that compute."""
    items.sort(key=lambda item: item.get_closest_marker("waits") is None)


@pytest.fixture
def cli(capsys, monkeypatch):
    """Runs the command line: exit code, what it printed, what it said on stderr."""
    from fedran.cli.main import run

    monkeypatch.setenv("COLUMNS", "80")

    def call(*arguments):
        code = run(list(arguments))
        out = capsys.readouterr()
        return code, out.out, out.err

    return call
