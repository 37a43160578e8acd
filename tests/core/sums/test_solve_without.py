"""The head without some messages equals that of an aggregator that never absorbed them."""

import numpy as np
import pytest

import fedran
from helpers.core.samples import D, rows


def messages(phi, count=4):
    """Some summaries of different rows. The last one has a class of its own."""
    made = []
    for seed in range(count):
        Z, y = rows(30, seed=seed)
        y = [3 if seed == count - 1 and label == 2 else label for label in y]
        made.append(fedran.summarize(phi(Z), y, 6, fingerprint=phi.fingerprint))
    return made


def absorbed(made, phi, **options):
    total = fedran.Aggregator(phi.out_features, fingerprint=phi.fingerprint, **options)
    for i, message in enumerate(made):
        total.absorb(message, client=f"site-{i}", task="may")
    return total


@pytest.mark.parametrize("M", [16, 400], ids=["gram", "stack"])
@pytest.mark.parametrize("left_out", [(0,), (3,), (1, 3)])
def test_subtracting_equals_never_having_absorbed(M, left_out):
    phi = fedran.RandomFeatures(D, M, seed=2)
    made = messages(phi)
    total = absorbed(made, phi)
    before = fedran.encode(total)
    found = total.solve_without(made[i] for i in left_out)
    kept = [m for i, m in enumerate(made) if i not in left_out]
    wanted = absorbed(kept, phi).solve()
    assert found.classes == wanted.classes
    assert (3 in found.classes) == (3 not in left_out)
    assert found.diagnosis.lam == pytest.approx(wanted.diagnosis.lam, rel=1e-5)
    scale = np.abs(wanted.weights).max()
    np.testing.assert_allclose(found.weights, wanted.weights, atol=2e-3 * scale)
    assert fedran.encode(total) == before


def test_nothing_is_left_without_any_message():
    phi = fedran.RandomFeatures(D, 16, seed=2)
    made = messages(phi)
    assert absorbed(made, phi).solve_without(made) is None


def test_a_message_that_was_not_absorbed_cannot_be_left_out():
    phi = fedran.RandomFeatures(D, 16, seed=2)
    *made, stranger = messages(phi)
    total = absorbed(made, phi)
    for wrong in ([stranger], [made[0], made[0]], [fedran.decode(fedran.encode(made[0]))]):
        with pytest.raises(ValueError, match="pass the copy that was absorbed"):
            total.solve_without(wrong)


def test_on_torch_it_is_the_same():
    phi = fedran.RandomFeatures(D, 16, seed=2)
    made = messages(phi)
    wanted = absorbed(made, phi).solve_without(made[:1])
    found = absorbed(made, phi, device="cpu").solve_without(made[:1]).to(None)
    np.testing.assert_allclose(found.weights, wanted.weights, atol=1e-4)
