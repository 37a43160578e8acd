"""Only an app that names the installed ones is run."""

import pytest

pytest.importorskip("flwr")

from flwr.cli.build import build_fab_from_files

from fedran.core.errors import Refused
from fedran.federation.ops import flower
from fedran.federation.protocol.executor import check_app

OURS = flower.APP_TEXT.encode()
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Flower's libraries


def test_our_own_app_is_accepted():
    check_app(build_fab_from_files({"pyproject.toml": OURS})[0])


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"pyproject.toml": OURS.replace(b"site.app:app", b"site.app:other")}, "site.app:other"),
        ({"pyproject.toml": OURS, "fedran/federation/site/app.py": b"boom = 1"}, "app.py"),
        ({"pyproject.toml": OURS.replace(b"fedran.federation.server", b"evil")}, "evil"),
    ],
)
def test_any_other_app_is_refused(files, words):
    with pytest.raises(Refused, match=f"an app that only names the apps of fedran, got .*{words}"):
        check_app(build_fab_from_files(files)[0])


@pytest.mark.parametrize("fab", [b"", b"PK", b"\0" * 1000])
def test_an_app_that_cannot_be_read_is_refused(fab):
    with pytest.raises(Refused, match="an app that only names the apps of fedran"):
        check_app(fab)
