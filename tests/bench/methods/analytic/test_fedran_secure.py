"""FedRAN-secure: the sum of the uploads is all that the server uses."""

import numpy as np
import pytest

from fedran.core.errors import Refused
from fedran.core.solve.nystrom import sketch_ridge
from fedran.wire.container import unpack
from fedran.wire.validation import FILE_LIMITS
from fedran_bench.methods.analytic.fedran_secure import FedRANSecure, aware_codes
from fedran_bench.methods.analytic.gram_based import Exact
from helpers.bench.hostile import altered, frozen
from helpers.bench.toy_federation import distance, make_toy

SMALL = {"out_features": 64, "most_rows": 64}


def answers(toy, method, state, t):
    return toy.uploads(method, t, message=method.broadcast(state, t, 0))


def vector(blob):
    return unpack(blob, FILE_LIMITS).tensors["vector"].view("<u4")


@pytest.mark.parametrize("omega", ["aware", "blind"])
@pytest.mark.parametrize("width", [31, 32])
def test_a_wide_sketch_and_the_packed_gram_are_exact(omega, width):
    """Ten rows per class and at most three classes per task: within-class ranks of at most 27."""
    toy = make_toy(1, "mixed", rows=10)
    method, exact = FedRANSecure(**SMALL, width=width, omega=omega), Exact(out_features=64)
    found, wanted = toy.play(method), toy.play(exact)
    assert distance(found.aggregator.gram(), wanted.total.gram()) < 1e-3
    assert distance(found.head.weights, wanted.total.solve(sketch_ridge(64)).weights) < 1e-2
    assert ("packed Gram" in method.sends) == (width == 32)


def test_masks_that_cancel_change_nothing():
    toy, method = make_toy(0), FedRANSecure(**SMALL, width=8)
    state = method.init(toy.spec, 0)
    plain = answers(toy, method, state, 0)
    size = len(vector(plain["client-0"]))
    rng = np.random.default_rng(0)
    masks = rng.integers(0, 2**32, (3, size), dtype=np.uint32)
    masks[2] = -(masks[0] + masks[1])
    masked = {
        client: altered(blob, vector=lambda v, m=m: (v.view("<u4") + m).view(np.uint8))
        for (client, blob), m in zip(plain.items(), masks, strict=True)
    }
    assert all(np.mean(vector(masked[c]) == vector(plain[c])) < 0.01 for c in plain)
    open_ = method.aggregate(method.init(toy.spec, 0), 0, 0, plain)
    assert frozen(method.aggregate(state, 0, 0, masked)) == frozen(open_)


def test_every_upload_has_the_same_size_whatever_a_client_holds():
    toy, method = make_toy(0), FedRANSecure(**SMALL, width=8)
    state = toy.play(method, upto=1)
    uploads = answers(toy, method, state, 1)  # the last client has no row in this task
    assert len({len(blob) for blob in uploads.values()}) == 1
    assert not vector(uploads["client-2"]).any()
    assert len(vector(uploads["client-0"])) == 2 + 1 + 2 * 64 + 64 * 8


def test_an_aware_omega_spans_the_factor():
    rng = np.random.default_rng(0)
    factor = rng.standard_normal((300, 20)) * np.exp(-0.2 * np.arange(20))
    codes, step = aware_codes(factor, 30, seed=(5, 1))
    assert (codes.shape, codes.dtype) == ((300, 30), np.int8)
    omega = codes * step
    Q = np.linalg.qr(omega)[0]
    unit = factor / np.linalg.norm(factor, axis=0)
    assert np.linalg.norm(unit - Q @ (Q.T @ unit), axis=0).max() < 0.05
    sizes = np.linalg.norm(factor.T @ omega, axis=0)
    assert sizes.max() < 4 * sizes.min()
    narrow, _ = aware_codes(factor, 4, seed=(0, 0))
    leading = np.linalg.svd(factor, full_matrices=False)[0][:, :1]
    Q = np.linalg.qr(narrow.astype(np.float64))[0]
    assert np.linalg.norm(Q.T @ leading) > 0.8


def test_an_aware_omega_is_sent_in_one_byte_per_entry_and_a_blind_one_as_a_seed():
    toy = make_toy(0)
    for omega, size in (("aware", 64 * 8), ("blind", None)):
        method = FedRANSecure(**SMALL, width=8, omega=omega)
        state = toy.play(method, upto=1)
        offer = unpack(method.broadcast(state, 1, 0), FILE_LIMITS)
        found = offer.tensors.get("omega")
        assert (None if found is None else found.nbytes) == size
        assert (offer.header.get("omega_seed") is None) == (omega == "aware")


ATTACKS = {
    "a vector too short": lambda blob: altered(blob, vector=lambda v: v[:-4]),
    "a vector of floats": lambda blob: altered(blob, vector=lambda v: v.view("<f4")),
    "a tensor too many": lambda blob: altered(blob, other=np.zeros(3)),
    "an answer to another offer": lambda blob: altered(blob, offer="0" * 64),
    "counts below zero": lambda blob: altered(
        blob, vector=lambda v: np.concatenate([np.full(4, 255, np.uint8), v[4:]])
    ),
    "noise": lambda blob: altered(
        blob, vector=lambda v: np.random.default_rng(0).integers(0, 256, v.size, dtype=np.uint8)
    ),
    "the last byte missing": lambda blob: blob[:-1],
    "another kind": lambda blob: altered(blob, kind="gram"),
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
@pytest.mark.parametrize("width", [8, 64])
def test_a_round_with_a_hostile_upload_changes_nothing(attack, width):
    toy, method = make_toy(0), FedRANSecure(**SMALL, width=width)
    state = toy.play(method, upto=1)
    before, uploads = frozen(state), answers(toy, method, state, 1)
    with pytest.raises(Refused):
        method.aggregate(state, 1, 0, {**uploads, "client-0": attack(uploads["client-0"])})
    assert frozen(state) == before


def test_more_uploads_than_the_scales_allow_are_refused():
    toy, method = make_toy(0), FedRANSecure(**SMALL, width=8)
    state = method.init(toy.spec, 0)
    uploads = answers(toy, method, state, 0)
    with pytest.raises(Refused, match="uploads: expected at most 3"):
        method.aggregate(state, 0, 0, {**uploads, "another": uploads["client-0"]})


def test_a_client_refuses_what_it_cannot_send():
    toy = make_toy(0)
    method = FedRANSecure(out_features=64, width=8, most_rows=3)
    state = method.init(toy.spec, 0)
    offer = method.broadcast(state, 0, 0)
    with pytest.raises(ValueError, match="most_rows allows 3"):
        method.client(None, offer, toy.data(0, 0), 0)
    method = FedRANSecure(out_features=64, width=8)
    with pytest.raises(ValueError, match="not in the class list"):
        method.client(None, offer, toy.data(1, 0), 0)
    with pytest.raises(ValueError, match="needs the server's offer"):
        method.client(None, b"", toy.data(0, 0), 0)
    with pytest.raises(Refused, match="seed"):
        method.client(None, offer, toy.data(0, 0), 1)


def test_a_feature_map_without_a_bound_is_refused_before_any_client_starts():
    with pytest.raises(ValueError, match="rows of bounded norm"):
        FedRANSecure(**SMALL, kind="relu").init(make_toy(0).spec, 0)
