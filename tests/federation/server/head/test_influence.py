"""The accuracy without each site names the one that does harm."""

import numpy as np
import pytest

pytest.importorskip("cryptography")

import fedran
from fedran.data.rows import Rows
from fedran.federation.server.head.gate import ValidationSet, gains_without
from helpers.federation.gated import VALIDATION, flipped, gated_sites, honest, rows, send, store_of


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


def test_the_site_that_lies_has_the_largest_gain_as_a_replay_confirms(store):
    gains = gains_without(store, VALIDATION)
    liar, *others = sorted(gains, key=gains.get, reverse=True)
    assert (liar, len(others)) == ("site-5", 4)
    assert gains[liar] > 5 > max(gains[site] for site in others)
    full = store.solve()
    total = VALIDATION.accuracy(full)
    for site in gains:
        replay = fedran.Aggregator(fingerprint=store.fingerprint)
        for upload in store.database.uploads():
            if upload.client != site:
                message = store.database.message(upload)
                replay.absorb(message, client=upload.client, task=upload.task)
        without = VALIDATION.accuracy(replay.solve(full.diagnosis.lam), full.classes)
        assert without == pytest.approx(total + gains[site] / 100)


def test_validation_rows_of_other_classes_say_nothing(store):
    other = ValidationSet(Rows(np.ones((3, VALIDATION.rows.X.shape[1])), ["x"] * 3), VALIDATION.phi)
    with pytest.raises(ValueError, match="no class"):
        gains_without(store, other)
