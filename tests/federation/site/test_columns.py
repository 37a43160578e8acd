"""Tables with named columns at sites: the server's list decides their order."""

import json
import math
import random
import sys
from dataclasses import replace
from types import ModuleType

import numpy as np
import pandas
import pytest

pytest.importorskip("cryptography")

import fedran
from fedran.core.errors import Refused
from fedran.federation.protocol.identity import SiteKey
from fedran.federation.protocol.limits import MAX_COLUMN_NAMES
from fedran.federation.protocol.messages import Offer, open_envelope
from fedran.federation.protocol.ranges import check_ranges, proposed_ranges, unusual_columns
from fedran.federation.secure.masking.contribution import Content
from fedran.federation.secure.site.participant import make_contribution
from fedran.federation.server.head.validation import ValidationSet
from fedran.federation.server.settings import ServerSettings
from fedran.federation.site.settings import SitePaths
from fedran.federation.site.source import FunctionSource
from fedran.federation.site.upload import Site
from fedran.federation.status.check import check_rows
from helpers.federation.made_site import OFFER, SUM, rows

NAMES = ("age", "dose", "pulse", "weight", "height", "rate")
LISTED = replace(OFFER, columns=NAMES)


def table(columns=NAMES):
    X, y = rows()
    return pandas.DataFrame(X, columns=list(NAMES))[list(columns)].assign(label=y)


@pytest.fixture
def make(tmp_path):
    """A site whose task `may` is a table."""
    key = SiteKey.generate()

    def site(frame, suffix=".csv", name="site"):
        folder = tmp_path / name
        (folder / "data").mkdir(parents=True)
        key.save(folder / "site.key")
        lines = 'federation = "trial"\nclient = "site-1"\nfolder = "data"\n'
        (folder / "site.toml").write_text(lines)
        path = folder / "data" / f"may{suffix}"
        frame.to_csv(path, index=False) if suffix == ".csv" else frame.to_parquet(path, index=False)
        frame.to_csv(folder / "v.csv", index=False)
        return Site.load(folder / "site.toml"), SitePaths(folder)

    return site


def shuffled():
    names = list(NAMES)
    random.Random(1).shuffle(names)
    assert tuple(names) != NAMES
    return names


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_columns_in_any_order_make_the_same_upload(suffix, make):
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    sites = [make(table(names), suffix, names[0])[0] for names in (NAMES, shuffled())]
    ordered, other = (open_envelope(site.prepare(LISTED)).upload for site in sites)
    assert ordered == other
    unlisted = open_envelope(make(table(shuffled()), suffix, "c")[0].prepare(OFFER)).upload
    assert fedran.decode(unlisted).fingerprint != fedran.decode(other).fingerprint
    offer = replace(SUM, columns=NAMES)
    content = Content((0, 1, 2), 0, 0, 3, 1000)
    ordered, other = (make_contribution(site, offer, content) for site in sites)
    np.testing.assert_array_equal(ordered, other)


def test_a_missing_or_unknown_column_is_refused_by_name_everywhere(make):
    site, paths = make(table().rename(columns={"dose": "Dose"}))
    words = "no 'dose' and the unknown 'Dose'"
    with pytest.raises(Refused, match=words):
        site.prepare(LISTED)
    (finding,) = check_rows(paths, "may", LISTED)
    assert (finding.level, words in finding.text) == ("problem", True)
    assert site.outbox.pending() == []


def test_a_function_may_return_named_columns(monkeypatch):
    module = ModuleType("hospital_rows")
    module.load = lambda task: (table(shuffled()).drop(columns="label"), rows()[1])
    module.numbered = lambda task: (pandas.DataFrame(rows()[0]), rows()[1])
    monkeypatch.setitem(sys.modules, "hospital_rows", module)
    found = FunctionSource("hospital_rows:load")("may").in_order(NAMES, "rows")
    np.testing.assert_array_equal(found.X, rows()[0])
    assert FunctionSource("hospital_rows:numbered")("may").columns == ()


def test_validation_rows_are_put_in_the_same_order(make):
    site, paths = make(table(shuffled()))
    phi = LISTED.features()
    agg = fedran.Aggregator(fingerprint=phi.fingerprint)
    X, y = rows()
    agg.absorb(fedran.decode(open_envelope(site.prepare(LISTED)).upload), client="a", task="may")
    head = agg.solve()
    right = int(np.sum(head.predict(phi(X)) == np.array(y)))
    assert right > 50
    settings = ServerSettings("trial", 6, source="test", columns=list(NAMES), validation="v.csv")
    assert ValidationSet.load(paths.folder, settings).test(head)[0] == right / len(y)


def test_check_names_unscaled_columns(make, caplog):
    frame = table()
    frame["weight"] *= 1e6
    site, paths = make(frame)
    for offer in (None, LISTED):
        (warning,) = (f for f in check_rows(paths, "may", offer) if f.level == "warning")
        assert "'weight'" in warning.text
    site.prepare(OFFER)
    assert "'weight'" in caplog.text


RANGES = (("age", -1.0, 3.0), ("*", -1.0, 4.0))


def test_rows_that_were_prepared_in_another_way_are_a_warning_that_names_the_columns(make, caplog):
    offer = replace(LISTED, ranges=RANGES)
    assert Offer.read(json.loads(json.dumps(offer.fields()))) == offer
    assert offer.fingerprint == LISTED.fingerprint
    for name, change, named in (
        ("same", lambda frame: frame, ()),
        ("cents", lambda frame: frame.assign(age=100 * frame["age"]), ("'age' has",)),
        ("scaled", lambda frame: frame.assign(age=frame["age"] / 255), ("'age' has",)),
        ("all", lambda frame: frame.assign(**(100 * frame[list(NAMES)])), ("'age'", "every")),
    ):
        site, paths = make(change(table(shuffled())), name=name)
        caplog.clear()
        site.prepare(offer)
        findings = [f.text for f in check_rows(paths, "may", offer) if f.level == "warning"]
        for text in (caplog.text, " ".join(findings)):
            assert [words in text for words in ("'age' has", "every column has")] == [
                any(n in words for n in named) for words in ("'age' has", "every column has")
            ], name


def test_ranges_are_proposed_from_a_table_of_the_owner_and_checked():
    X = table()[list(NAMES)].to_numpy()
    for names in (NAMES, ()):
        found = proposed_ranges(X, names)
        assert list(found) == (list(names) or ["*"])
        settings = ServerSettings("trial", 6, source="test", columns=list(NAMES), ranges=found)
        ranges = settings.offer("may").ranges
        assert unusual_columns(X[::2], NAMES, ranges) == ""
        assert unusual_columns(X - 5, NAMES, ranges) != ""
    for wrong in ({"age": [1, 0]}, {"age": 3}, {"age": [0, math.nan]}, {"age": ["0", 1]}):
        with pytest.raises(Refused, match="ranges"):
            check_ranges(wrong)


def test_the_list_travels_with_the_offer_and_is_part_of_the_fingerprint():
    assert Offer.read(json.loads(json.dumps(LISTED.fields()))) == LISTED
    settings = ServerSettings("trial", 6, source="test", columns=list(NAMES))
    assert settings.features().fingerprint == LISTED.features().fingerprint
    others = [OFFER, LISTED, replace(OFFER, columns=NAMES[::-1])]
    assert len({offer.fingerprint.hash for offer in others}) == 3


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (["a", "b"], "6 names, as many as in_features, got 2"),
        (["a", "b", "c", "d", "e", "a"], "every name once, got 'a' twice"),
        (["a", "b", "c", "d", "e", 6], "a list of texts"),
        (["a", "b", "c", "d", "e", ""], "a list of texts"),
        (["a", "b", "c", "d", "e", "x" * MAX_COLUMN_NAMES], "names of 262,144 characters"),
    ],
)
def test_a_wrong_list_is_refused(columns, words):
    with pytest.raises(Refused, match=words):
        Offer.read({**OFFER.fields(), "columns": columns})
    if all(isinstance(name, str) for name in columns):
        with pytest.raises(ValueError, match=words):
            ServerSettings("trial", 6, columns=columns)
