"""Aggregators of points: order of arrival, leaving out, class weights, and the heads they give."""

import itertools
import pickle

import numpy as np
import pytest
import torch

import fedran
from helpers.core.samples import D, rows

PHI = fedran.KernelFeatures(D, "hellinger", source="tests")


def site(seed, n=30, size=1, phi=PHI):
    Z, y = rows(n, seed=seed)
    return fedran.condense(phi(Z), y, size, fingerprint=phi.fingerprint)


def absorbed(messages, **options):
    agg = fedran.Aggregator(fingerprint=PHI.fingerprint, **options)
    for name, message in messages.items():
        agg.absorb(message, client=name, task="may")
    return agg


def same(a, b):
    return a.classes == b.classes and all(
        np.array_equal(getattr(a, name), getattr(b, name)) for name in ("weights", "landmarks")
    )


@pytest.mark.parametrize("landmarks", [None, 12])
def test_the_order_of_arrival_changes_no_bit(landmarks):
    parts = {name: site(i, size=1 + i) for i, name in enumerate(["c", "a", "b"])}
    heads = [
        absorbed(dict(order)).solve(landmarks=landmarks)
        for order in itertools.permutations(parts.items())
    ]
    assert all(same(heads[0], head) for head in heads[1:])
    assert fedran.encode(heads[0]) == fedran.encode(heads[-1])


@pytest.mark.parametrize("landmarks", [None, 12])
@pytest.mark.parametrize("gone", [("a",), ("a", "c")])
def test_leaving_out_is_never_having_absorbed(landmarks, gone):
    parts = {name: site(i) for i, name in enumerate("abcd")}
    found = absorbed(parts).solve_without([parts[g] for g in gone], landmarks=landmarks)
    rest = {name: part for name, part in parts.items() if name not in gone}
    assert same(found, absorbed(rest).solve(landmarks=landmarks))


def test_nothing_is_left_without_any_message_and_strangers_cannot_be_left_out():
    parts = {name: site(i) for i, name in enumerate("ab")}
    agg = absorbed(parts)
    assert agg.solve_without(parts.values()) is None
    for wrong in ([site(9)], [parts["a"], parts["a"]]):
        with pytest.raises(ValueError, match="absorbed"):
            agg.solve_without(wrong)


def test_the_head_is_a_dense_kernel_ridge_on_its_support():
    agg = absorbed({"a": site(0), "b": site(1, size=3)})
    head = agg.solve(0.1)
    points = sum(agg.points.values())
    X, n = head.landmarks.astype(np.float64), points.counts
    K = np.exp((X @ X.T - 1) / head.scale)
    own = np.diagonal(K)
    K[np.diag_indices(len(K))] = own + np.maximum(0, 1 - own) / n
    alpha = np.linalg.solve(K + np.diag(0.1 / n), np.eye(3)[points.codes])
    np.testing.assert_allclose(head.weights, alpha, atol=1e-4)
    np.testing.assert_allclose(X, points.means, atol=0.05)


def test_balanced_weights_are_those_of_repeated_rows_and_help_the_rare_class():
    rng = np.random.default_rng(0)
    Z = np.abs(rng.standard_normal((330, D)) + np.r_[np.zeros(300), np.ones(30)][:, None] * 0.7)
    y = [0] * 300 + [1] * 30
    agg = absorbed({"a": fedran.condense(PHI(Z), y, fingerprint=PHI.fingerprint)})
    plain, balanced = (agg.solve(0.3, class_weight=w) for w in (None, "balanced"))
    by_hand = agg.solve(0.3, class_weight={0: 330 / 600, 1: 330 / 60})
    assert same(balanced, by_hand)
    recall = [np.mean(head.predict(PHI(Z[300:])) == 1) for head in (plain, balanced)]
    assert recall[1] > recall[0] + 0.1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"class_weight": "even"}, "balanced"),
        ({"class_weight": {"cat": 2.0}}, "'cat'"),
        ({"class_weight": {0: -1.0}}, "positive"),
        ({"landmarks": 0}, "landmarks"),
        ({"ridge": -1.0}, "ridge"),
        ({"ridge": fedran.Ridge()}, "leave-one-out"),
        ({"novelty": 3}, "novelty"),
    ],
)
def test_wrong_options_are_named(options, said):
    with pytest.raises(ValueError, match=said):
        absorbed({"a": site(0)}).solve(**options)


def test_each_kind_of_message_is_refused_by_an_aggregator_of_the_other():
    Z, y = rows()
    wide = fedran.RandomFeatures(D, 32)
    summary = fedran.summarize(wide(Z), y, 4, fingerprint=wide.fingerprint)
    of_sums = fedran.Aggregator(fingerprint=wide.fingerprint)
    for agg, message in ((of_sums, site(0)), (absorbed({}), summary)):
        with pytest.raises(fedran.Refused) as refused:
            agg.absorb(message, client="a", task="t")
        assert refused.value.field == "message"
        assert not agg.absorbed
    with pytest.raises(TypeError):
        absorbed({"a": site(0)}).gram()


def test_other_features_and_other_widths_are_refused():
    other = fedran.KernelFeatures(D, "hellinger", source="others")
    with pytest.raises(fedran.Refused, match="others"):
        absorbed({"a": site(0, phi=other)})
    nameless = fedran.Aggregator()
    nameless.absorb(fedran.condense(np.eye(3), [0, 1, 2]), client="a", task="t")
    with pytest.raises(fedran.Refused, match="3 columns"):
        nameless.absorb(fedran.condense(np.eye(4), [0, 1, 2, 3]), client="b", task="t")


def test_withheld_classes_and_empty_messages_count_for_nothing():
    Z, _ = rows(30)
    empty = fedran.condense(PHI(Z[:4]), [0, 0, 1, 1], 5, 5, fingerprint=PHI.fingerprint)
    agg = absorbed({"a": empty})
    assert empty.withheld == {0: 2, 1: 2}
    assert (agg.classes, agg.accounts.n_rows) == ((), 0)
    with pytest.raises(ValueError, match="no labelled rows"):
        agg.solve()
    agg.absorb(site(1), client="b", task="may")
    assert same(agg.solve(), absorbed({"b": site(1)}).solve())


def test_saved_aggregators_go_on_as_if_nothing_had_happened(tmp_path):
    agg = absorbed({"a": site(0), "b": site(1, size=4)})
    fedran.save(agg, tmp_path / "state")
    loaded = fedran.load(tmp_path / "state", fedran.Aggregator)
    for other in (loaded, pickle.loads(pickle.dumps(agg))):
        other.absorb(site(2), client="c", task="may")
    agg.absorb(site(2), client="c", task="may")
    assert loaded.absorbed == agg.absorbed
    assert same(loaded.solve(landmarks=20), agg.solve(landmarks=20))


def test_others_contradict_a_site_that_swaps_its_classes():
    Z, y = rows(300)
    y = [(label + (i % 5 == 2)) % 3 for i, label in enumerate(y)]
    parts = {
        name: fedran.condense(PHI(Z[i::5]), y[i::5], fingerprint=PHI.fingerprint)
        for i, name in enumerate("abcde")
    }
    agg = absorbed(parts)
    for left_out in ((), [("c", None)], [("a", 0), ("b", 7)]):
        said = agg.what_others_say(left_out)
        share = {
            name: sum(o.wrong for o in found.values()) / sum(o.asked for o in found.values())
            for name, found in said.items()
        }
        assert share.pop("c") > 0.7
        assert max(share.values()) < 0.4
        assert sum(o.rows for found in said.values() for o in found.values()) == 300


def test_parts_are_left_out_as_if_they_had_never_been_there():
    parts = {"a": site(0), "b": site(1), "c": site(2)}
    agg = absorbed(parts)
    assert same(agg.solve(left_out=[("c", None)]), absorbed({"a": site(0), "b": site(1)}).solve())
    rest = agg.solve(left_out=[("c", 0)])
    assert rest.diagnosis.n_rows == agg.solve().diagnosis.n_rows - site(2).rows_per_class()[0]
    assert same(
        agg.solve(left_out=[("c", label) for label in (0, 1, 2)]), agg.solve(left_out=[("c", None)])
    )
    with pytest.raises(ValueError, match="everything is left out"):
        agg.solve(left_out=[(name, None) for name in parts])


def test_a_label_of_one_site_alone_is_not_judged():
    Z, _ = rows(40)
    alone = fedran.condense(PHI(Z), ["only here"] * 40, fingerprint=PHI.fingerprint)
    said = absorbed({"a": site(0), "b": site(1), "c": alone}).what_others_say()
    assert said["c"] == {}
    assert set(said["a"]) == {0, 1, 2}


def test_single_rows_calibrate_a_head_and_groups_do_not():
    single, grouped = (absorbed({"a": site(0, 80, size)}).solve() for size in (1, 3))
    H = PHI(rows(20, seed=5)[0])
    assert single.diagnosis.accuracy == single.diagnosis.agreement
    assert single.predict_proba(H).sum(axis=1) == pytest.approx(1)
    assert grouped.diagnosis.accuracy is None
    assert 0 < grouped.diagnosis.agreement <= 1
    with pytest.raises(ValueError, match="calibrat"):
        grouped.predict_proba(H)
    assert grouped.calibrate(H, rows(20, seed=5)[1]).predict_proba(H).shape == (20, 3)


def test_learned_rows_are_less_novel_than_others():
    head = absorbed({"a": site(0, 60)}).solve()
    Z, _ = rows(60)
    far = np.zeros((5, D))
    far[:, 0] = 1.0
    known, new = head.novelty(PHI(Z)), head.novelty(PHI(far))
    assert known.max() < 0.3 < new.min() <= 1


@pytest.mark.parametrize("landmarks", [None, 15])
def test_on_torch_it_is_the_same(landmarks):
    parts = {"a": site(0), "b": site(1, size=2)}
    numpy = absorbed(parts).solve(0.1, landmarks=landmarks)
    on_torch = absorbed(parts, device="cpu").solve(0.1, landmarks=landmarks)
    H = PHI(rows(20, seed=7)[0])
    assert isinstance(on_torch.weights, torch.Tensor)
    found = on_torch.scores(torch.asarray(H))
    np.testing.assert_allclose(found.numpy(), numpy.scores(H), atol=1e-4)
    np.testing.assert_allclose(on_torch.to(None).scores(H), numpy.scores(H), atol=1e-4)
    np.testing.assert_allclose(on_torch.novelty(torch.asarray(H)), numpy.novelty(H), atol=1e-5)
