"""The accuracy without each site names the one that does harm."""

import numpy as np
import pytest

pytest.importorskip("cryptography")

from fedran.federation.server.influence import measure_influence, replay
from helpers.gated import VALIDATION, flipped, gated_sites, honest, rows, send, store_of


@pytest.fixture(scope="module")
def sites():
    return gated_sites()


@pytest.fixture(scope="module")
def store(sites, tmp_path_factory):
    found = store_of(sites, tmp_path_factory.mktemp("state"))
    honest(found, sites, "may", (0, 1))
    honest(found, sites, "june", (2, 3))
    assert send(found, sites, "site-5", "may", rows(50, (0, 1)))
    assert send(found, sites, "site-5", "june", flipped(rows(7, (0, 1)), 0, 1), times=5)
    yield found
    found.close()


def test_the_site_that_lies_has_the_largest_gain_and_is_confirmed_by_replay(store):
    table = measure_influence(store, VALIDATION)
    assert [line.task for line in table.lines] == [""] * 5
    liar, *others = table.lines
    assert liar.client == "site-5"
    assert liar.gain > 5 > max(line.gain for line in others)
    assert liar.replayed == pytest.approx(liar.without, abs=0.005)
    assert liar.without == pytest.approx(table.accuracy + liar.gain / 100)
    assert [line.replayed for line in others] == [None] * 4


def test_each_upload_has_its_own_line(store):
    table = measure_influence(store, VALIDATION, by_upload=True)
    assert len(table.lines) == len(store.aggregator.absorbed)
    assert (table.lines[0].client, table.lines[0].task) == ("site-5", "june")
    assert {(line.client, line.task) for line in table.lines} == set(store.aggregator.absorbed)


def test_every_line_agrees_with_a_replay(store):
    for line in measure_influence(store, VALIDATION, replay_all=True).lines:
        assert line.replayed == pytest.approx(line.without, abs=0.005)


def test_a_replay_without_an_upload_never_absorbs_it(store):
    left_out = [u for u in store.database.uploads() if u.task == "june"]
    head = replay(store, left_out)
    assert head.classes == (0, 1)
    assert head.diagnosis.n_rows == sum(u.rows for u in store.database.uploads()) - sum(
        u.rows for u in left_out
    )
    assert replay(store, store.database.uploads()) is None


def test_validation_rows_of_other_classes_say_nothing(store):
    from fedran.data.rows import Rows
    from fedran.federation.server.gate import ValidationSet

    other = ValidationSet(Rows(np.ones((3, VALIDATION.rows.X.shape[1])), ["x"] * 3), VALIDATION.phi)
    with pytest.raises(ValueError, match="no class"):
        measure_influence(store, other)
