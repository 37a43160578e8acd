import numpy as np
import pytest

import fedran
from fedran.presets import paper


@pytest.mark.parametrize(
    ("setting", "sizes"),
    [("resnet", (512, 8192, 2048)), ("vtab", (512, 8192, 512)), ("vit", (768, 2048, 512))],
)
def test_the_papers_sizes(setting, sizes):
    p = paper(setting)
    assert (p.in_features, p.out_features, p.rank) == sizes
    assert (p.lam, p.tau) == (1e-3, 0.5)


def test_sizes_can_be_overridden_and_unknown_settings_are_refused():
    p = paper("vit", in_features=3, out_features=9, rank=4, seed=7)
    assert (p.in_features, p.out_features, p.rank, p.seed) == (3, 9, 4, 7)
    with pytest.raises(ValueError, match="resnet, vtab, vit"):
        paper("bert")


def test_a_rank_of_zero_is_not_taken_for_the_default():
    with pytest.raises(ValueError):
        paper("vit", rank=0).aggregator()


def test_the_preset_is_algorithm_1_from_features_to_head():
    p = paper(in_features=5, out_features=24, rank=6)
    rng = np.random.default_rng(0)
    phi, server = p.features(), p.aggregator()
    assert phi.fingerprint == fedran.RandomFeatures(5, 24, "relu").fingerprint
    G, B = np.zeros((24, 24)), np.zeros((24, 4))

    def best(S):
        values, V = np.linalg.eigh(S)
        return (V[:, -6:] * values[-6:]) @ V[:, -6:].T

    for t in range(2):
        task = np.zeros((24, 24))
        for k in range(3):
            H = phi(rng.standard_normal((15, 5)))
            y = rng.integers(4, size=15)
            server.absorb(p.summarize(H, y), client=f"c{k}", task=f"t{t}")
            H = H.astype(np.float64)
            task = best(task + best(H.T @ H))
            B += H.T @ np.eye(4)[y]
        G = best(G + task)
    values, V = np.linalg.eigh(G)
    V, values = V[:, -6:], values[-6:]
    W = V @ (V.T @ B / (values + 1e-3)[:, None])
    head = p.solve(server)
    assert head.diagnosis.lam == 1e-3
    assert np.linalg.norm(head.weights - W) <= 1e-2 * np.linalg.norm(W)
