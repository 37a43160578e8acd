"""The same code on a GPU: run where one is present."""

import pickle

import numpy as np
import pytest

import fedran
from fedran.core.prepare import KINDS
from fedran.core.private.sketch_sums import blind_omega, sketch_sums
from fedran.core.solve.nystrom import sketch_to_summary

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    return np.abs(rng.standard_normal((300, 40))).astype(np.float32), rng.integers(0, 4, 300)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_features_on_the_gpu_agree_to_float32_rounding(rows, kind, bias):
    phi = fedran.RandomFeatures(40, 256, kind, bias=bias)
    on_gpu = phi(torch.asarray(rows[0], device="cuda"))
    assert on_gpu.device.type == "cuda"
    np.testing.assert_allclose(on_gpu.cpu().numpy(), phi(rows[0]), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rank", [20, None])
def test_cuda_agrees_with_numpy_to_float32_rounding(rows, rank):
    Z, y = rows
    phi = fedran.RandomFeatures(40, 256)
    heads = []
    for device in (None, "cuda"):
        agg = fedran.Aggregator(256, device=device)
        X = Z if device is None else torch.asarray(Z, device=device)
        for k in range(3):
            s = fedran.summarize(phi(X[k::3]), y[k::3], rank)
            agg.absorb(s, client=str(k), task="t")
        heads.append(agg.solve().to(None))
    assert np.allclose(phi(Z), phi(torch.asarray(Z, device="cuda")).cpu().numpy(), atol=1e-4)
    scale = np.abs(heads[0].weights).max()
    assert np.abs(heads[0].weights - heads[1].weights).max() < 1e-3 * scale
    assert np.mean(heads[0].predict(phi(Z)) == heads[1].predict(phi(Z))) > 0.99


def test_the_projection_stays_on_the_gpu_between_blocks(rows):
    phi = fedran.RandomFeatures(40, 256)
    Z = torch.asarray(rows[0], device="cuda")
    on_gpu = phi.projection_like(Z)
    before = torch.cuda.memory_allocated()
    for _ in phi.blocks(Z, max_bytes=4 * 256 * 16):
        assert phi.projection_like(Z).data_ptr() == on_gpu.data_ptr()
    del _
    assert torch.cuda.memory_allocated() <= before
    assert len(pickle.dumps(phi)) < 4096


@pytest.mark.parametrize("landmarks", [None, 20])
def test_a_kernel_head_on_the_gpu_is_that_of_numpy(rows, landmarks):
    Z, y = rows
    phi = fedran.KernelFeatures(40, "hellinger")
    points, heads = fedran.condense(phi(Z), y, fingerprint=phi.fingerprint), []
    for device in (None, "cuda", "cuda"):
        agg = fedran.Aggregator(fingerprint=phi.fingerprint, device=device, dtype="float64")
        agg.absorb(points.to(device), client="a", task="t")
        heads.append(agg.solve(landmarks=landmarks))
    scores = [head.to(None).scores(phi(Z)) for head in heads]
    np.testing.assert_allclose(scores[1], scores[0], atol=1e-3)
    on_gpu = heads[1].scores(torch.asarray(phi(Z), device="cuda")).cpu().numpy()
    np.testing.assert_allclose(on_gpu, scores[0], atol=1e-3)
    assert np.array_equal(scores[1], scores[2])


def test_a_sum_of_totals_on_the_gpu_gives_the_summary_of_numpy(rows):
    Z, y = rows
    phi = fedran.RandomFeatures(40, 256)
    omega = blind_omega(256, 32, 0)
    grams = []
    for device in (None, "cuda"):
        X = Z if device is None else torch.asarray(Z, device=device)
        total = sum(sketch_sums(phi(X[k::3]), y[k::3], range(4), omega) for k in range(3))
        grams.append(sketch_to_summary(total, omega, device=device).to(None).gram())
    assert np.linalg.norm(grams[0] - grams[1]) < 1e-4 * np.linalg.norm(grams[0])
