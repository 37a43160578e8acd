"""What a site tells a server that asks for its part in secure sums, and when it stops answering."""

import logging
import time
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("flwr")

from fedran.core.errors import Refused
from fedran.federation.protocol.configuration import load_settings
from fedran.federation.secure.masking.attempt import Request, Stage
from fedran.federation.secure.server import secure_round
from fedran.federation.secure.server.open_sum import make_attempt, make_content
from fedran.federation.secure.site.participant import CANNOT_ADD, NoContribution, Participant
from fedran.federation.secure.site.pinning import PinnedRoster
from fedran.federation.site.settings import SitePaths, SiteSettings
from fedran.federation.site.source import NoRows
from fedran.federation.site.upload import Site
from fedran.federation.status.site import read_site
from helpers.federation.secure_federation import (
    CLASSES,
    D,
    PrivateFederation,
    SecureFederation,
    requests_in,
    rows,
)


@pytest.fixture
def three(tmp_path, monkeypatch):
    return SecureFederation(tmp_path, monkeypatch)


def advertise(
    federation, number=1, name="site-1", task="may", roster="", attempted=None, **changes
):
    """Ask a site to take part in an attempt with these settings of the server."""
    file = federation.folder / "sites" / name / "site.toml"
    settings = load_settings(SiteSettings, file)
    shown = PinnedRoster(federation.state(name)).clients
    me = Participant.load(file, settings, shown)
    asked = federation.settings(**changes)
    with federation.store(**changes) as store:
        content = make_content(store, task)
        attempt = make_attempt(store, task, number, content)
    attempt = replace(attempt, roster=roster or attempt.roster, **(attempted or {}))
    request = Request(attempt, Stage.ADVERTISE).to_bytes()
    return me.answer(asked.offer(task), request, content.fields())


@pytest.mark.parametrize("field", ["federation", "fingerprint", "content", "length"])
def test_what_an_attempt_says_of_the_numbers_must_be_what_the_site_was_shown(three, field):
    """Else sites could add numbers of different meaning, of which one drowns all others."""
    other = {"federation": "other", "length": 7}.get(field, "0" * 64)
    with pytest.raises(Refused, match=f"{field} of the attempt"):
        advertise(three, attempted={field: other})
    assert three.files("site-1").state("may") is None
    assert not three.files("site-1").path("may", "vector").exists()


def put_strange_rows(federation, what):
    """Rows that a site cannot add, for one of several reasons."""
    X, y = rows(0, 60)
    if what == "label":
        y[3] = 9
    elif what == "nan":
        X[3] = np.nan
    federation.put("site-1", "may", X, y)


@pytest.mark.parametrize("what", ["count", "label", "nan", "time"])
def test_rows_that_do_not_fit_are_refused_with_one_sentence_for_good(
    three, monkeypatch, caplog, what
):
    """The server could otherwise ask with one limit after the other."""
    put_strange_rows(three, what)
    if what == "time":
        monkeypatch.setattr(Site, "rows", lambda *_: time.sleep(60))
        file = three.folder / "sites" / "site-1" / "site.toml"
        file.write_text(f"{file.read_text()}seconds = 1\n")
    caplog.set_level(logging.ERROR)
    for number, max_rows in enumerate((50, 10_000), 1):
        with pytest.raises(NoContribution) as told:
            advertise(three, number, max_rows=max_rows)
        assert str(told.value) == CANNOT_ADD
        assert not any(c.isdigit() for c in CANNOT_ADD)
    (found,) = read_site(SitePaths(three.folder / "sites" / "site-1")).uploads
    reason = {
        "count": "got 60",
        "label": "got 9; the server asked",
        "nan": "NaN",
        "time": "1 seconds",
    }[what]
    assert (found.state, reason in found.reason, reason in caplog.text) == ("refused", True, True)
    monkeypatch.undo()
    three.put("site-1", "may", *rows(0))
    with pytest.raises(NoContribution):
        advertise(three, 3)


def test_a_refused_task_is_in_the_status_of_the_site_and_concerns_no_other_task(three):
    put_strange_rows(three, "label")
    with pytest.raises(NoContribution):
        advertise(three, max_rows=50)
    advertise(three, task="june", max_rows=50)
    june, may = read_site(SitePaths(three.folder / "sites" / "site-1")).uploads
    assert (june.state, may.state, "got 9" in may.reason) == ("pending", "refused", True)


@pytest.mark.parametrize(
    "changes",
    [
        {"max_rows": 41},
        {"max_rows": 39},
        {"classes": CLASSES[:-1]},
        {"classes": [*CLASSES[1:], 7, 8]},
        {"classes": [*map(str, CLASSES), 7]},
        {"classes": [*CLASSES, 7], "max_rows": 41},
    ],
)
def test_a_server_that_changes_its_limits_learns_nothing_about_the_rows(three, changes):
    """A site has 40 rows. The first refusal of a series of limits would tell."""
    advertise(three, 1, max_rows=1000)
    with pytest.raises(Refused, match="that of the first request for this task, or more classes"):
        advertise(three, 2, **changes)
    advertise(three, 3, max_rows=1000)


def test_classes_can_be_added_and_not_taken_away(three):
    for number in range(1, 5):
        advertise(three, number, classes=[*range(number + 2), "new"])
    with pytest.raises(Refused, match="that of the first request for this task, or more classes"):
        advertise(three, 6)


def test_added_classes_do_not_end_a_refusal(three):
    """Otherwise a server could add one class after the other, and see when the site agrees."""
    put_strange_rows(three, "label")
    for number, classes in enumerate((CLASSES, [*CLASSES, 9], [*range(30)]), 1):
        with pytest.raises(NoContribution, match=CANNOT_ADD):
            advertise(three, number, classes=classes)


def test_a_server_cannot_ask_with_one_sketch_or_feature_map_after_the_other(three):
    advertise(three, 1, seed=1)
    for number, changes in enumerate(({"seed": 2}, {"sketch": 16}), 2):
        with pytest.raises(Refused, match="content: expected that of the first request"):
            advertise(three, number, **{"seed": 1, **changes})
    advertise(three, 4, seed=1)


def test_a_server_cannot_choose_another_resolution_than_that_of_the_roster(three, monkeypatch):
    monkeypatch.setattr("fedran.federation.secure.server.open_sum.MAX_SITES", 2)
    with pytest.raises(Refused, match="sites of the sum: expected those of the roster, got 2"):
        advertise(three)


@pytest.mark.parametrize("kind", [SecureFederation, PrivateFederation])
def test_a_request_that_is_refused_does_not_replace_a_vector_that_has_left(
    tmp_path, monkeypatch, kind
):
    """The attempt goes on, and a repetition must give the same sum, also with three of three."""
    federation = kind(tmp_path, monkeypatch, tasks=("may",))

    def quiet(message, answer):
        return None if Stage.CONFIRM in [r.stage for r in requests_in(message)] else answer()

    nodes = {i: federation.node(name, quiet) for i, name in enumerate(federation.names)}
    monkeypatch.setattr(secure_round, "MAX_ATTEMPTS", 1)
    assert federation.run("may", nodes=nodes) == "short"
    files = federation.files("site-1")
    assert files.state("may").stage is Stage.CONFIRM
    before = files.path("may", "vector").read_bytes()
    federation.put("site-1", "may", *rows(999))
    with pytest.raises(Refused, match="roster of the attempt"):
        advertise(federation, 2, roster="0" * 64)
    assert files.path("may", "vector").read_bytes() == before
    assert federation.run("may") == "complete"


def test_a_file_that_is_missing_after_rows_were_read_is_a_refusal_like_others(three, monkeypatch):
    """Otherwise a server without a refusal could ask with one class list after the other."""
    missing = FileNotFoundError("weights.onnx")
    monkeypatch.setattr(Site, "extractor", lambda *_: (_ for _ in ()).throw(missing))
    with pytest.raises(NoContribution, match=CANNOT_ADD):
        advertise(three)


def test_a_site_without_rows_says_so_and_takes_part_later(three):
    (three.folder / "sites" / "site-1" / "data" / "MAY.csv").touch()
    three.remove("site-1", "may")
    with pytest.raises(NoRows, match=r"^no rows for task may yet$"):
        advertise(three, 1, max_rows=50)
    three.put("site-1", "may", *rows(0))
    advertise(three, 2, max_rows=100)


@pytest.mark.parametrize(("own", "most"), [(2, 5), (5, 5), (6, 4)])
def test_the_noise_counts_on_no_site_that_may_know_the_own_one_or_tell_it(three, own, most):
    file = three.folder / "sites" / "site-1" / "site.toml"
    text = file.read_text().replace('privacy = "secure"', 'privacy = "dp"')
    file.write_text(f"{text}min_sites = {own}\nmax_epsilon = 1000.0\n")
    asked = {"privacy": "dp", "out_features": D, "epsilon": 1000.0, "min_sites": 6, "max_rows": 200}
    advertise(three, 1, honest_sites=most, **asked)
    if most < 5:
        with pytest.raises(Refused, match=f"honest sites: expected at most {most}, .*, got 5"):
            advertise(three, 2, honest_sites=5, **asked)
