"""A federation in the middle of a task."""

import pytest

from helpers.federation.recorded_federation import RecordedFederation


@pytest.fixture
def open_task(tmp_path):
    """A running server whose task ``may`` is open; one of three sites has answered."""
    found = RecordedFederation(tmp_path / "trial")
    found.task("may")
    found.upload("site-1", "may")
    found.seen("site-1")
    with found.task_running("may"), found.server_running():
        yield found
