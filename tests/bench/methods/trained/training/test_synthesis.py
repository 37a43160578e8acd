"""Synthetic images: what the generator learns, what the student learns, what stays untouched."""

import numpy as np
import pytest
import torch

from fedran_bench.methods.trained import recorded, synthesis
from fedran_bench.methods.trained.rows import network_input, normalise
from fedran_bench.methods.trained.synthesis import (
    BatchNormDistance,
    Synthesis,
    divergence,
)
from fedran_bench.methods.trained.target import TARGET
from fedran_bench.methods.trained.weights import (
    student_network,
    teacher_network,
)
from helpers.bench.toy_training import Rounds, make_tasks, quick, same


@pytest.fixture(scope="module")
def trained(dataset):
    """The weights of a small network that tells all classes apart."""
    method = quick("finetune", network="small", n_rounds=8, epochs=4)
    rounds = Rounds(method, dataset, make_tasks(dataset, n_tasks=1, n_clients=1)).run(1)
    right = method.predict(rounds.state, rounds.data.X_test) == rounds.data.y_test
    assert right.mean() > 0.8
    return rounds.state.weights


def plan_of(rounds, warmup, steps, distillation_steps, batch, **more):
    return TARGET(
        network="small",
        synthesis_rounds=rounds,
        warmup=warmup,
        generator_steps=steps,
        distillation_steps=distillation_steps,
        synthetic_batch=batch,
        **more,
    )


def pair(weights, device="cpu"):
    return (f("small", weights, device) for f in (teacher_network, student_network))


class Traced(Synthesis):
    """A synthesis that keeps its losses."""

    def __init__(self, *given):
        super().__init__(*given)
        self.losses, self.distilled = [], []

    def make_images(self, student):
        images, losses = super().make_images(student)
        self.losses.append(losses)
        return images, losses

    def distil(self, images):
        self.distilled.append(super().distil(images))


def synthesise(*given):
    traced = Traced(*given)
    traced.images = traced.run()
    return traced


def everything(network):
    return {n: t.clone() for n, t in network.state_dict().items()}


@pytest.fixture(scope="module")
def early(trained):
    """Ten rounds of synthesis, all of them before the warm-up."""
    return synthesise(*pair(trained), 8, plan_of(8, 20, 8, 5, 24), 0)


def test_the_generator_itself_learns(trained):
    """On noise it has not seen: the loss of its images before and after all rounds."""
    synthesis_run = Synthesis(*pair(trained), 8, plan_of(8, 20, 3, 0, 24), 0)
    synthesis_run.run()
    z = torch.randn((64, 256), generator=torch.Generator().manual_seed(77))
    losses = []
    fresh = Synthesis(*pair(trained), 8, plan_of(8, 20, 3, 0, 24), 0).generator
    for generator in (fresh, synthesis_run.generator):
        synthesis_run.random = torch.Generator().manual_seed(5)
        synthesis_run.statistics = BatchNormDistance(synthesis_run.teacher)
        with torch.no_grad(), synthesis_run.statistics:
            loss = synthesis_run.generator_loss(generator.train()(z), torch.arange(64) % 6, None)
            losses.append(float(loss))
    assert losses[1] < 0.9 * losses[0]


def test_synthetic_images_depend_on_the_seed_alone(trained):
    plan = plan_of(2, 1, 2, 2, 4)
    found = [synthesise(*pair(trained), 8, plan, seed).images for seed in (0, 0, 1)]
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


@pytest.mark.parametrize("plan", [plan_of(3, 1, 2, 3, 6), plan_of(2, 5, 2, 3, 6)])
def test_synthesis_changes_nothing_in_the_teacher_and_removes_its_hooks(trained, plan):
    teacher, student = pair(trained)
    before = everything(teacher)
    synthesise(teacher, student, 8, plan, 0)
    assert same(everything(teacher), before)
    assert not teacher.training
    for network in (teacher, student):
        assert not any(m._forward_pre_hooks or m._forward_hooks for m in network.modules())
    assert all(p.grad is None for p in teacher.parameters())


def test_nothing_is_distilled_before_the_warm_up(trained, early, monkeypatch):
    assert early.distilled == []
    monkeypatch.setattr(Synthesis, "distil", lambda *_: 1 / 0)
    monkeypatch.setattr(synthesis, "adversarial_loss", lambda *_: 1 / 0)
    found = synthesise(*pair(trained), 8, plan_of(3, 3, 1, 5, 4), 0)
    assert found.distilled == []
    with pytest.raises(ZeroDivisionError):
        synthesise(*pair(trained), 8, plan_of(4, 3, 1, 5, 4), 0)


@pytest.mark.parametrize(("rounds", "warmup", "calls"), [(3, 3, 0), (3, 2, 2), (3, 0, 6)])
def test_the_adversarial_term_acts_from_the_warm_up_on(trained, monkeypatch, rounds, warmup, calls):
    asked, plain = [], synthesis.adversarial_loss

    def look(student, teacher):
        asked.append(student.shape)
        return plain(student, teacher)

    monkeypatch.setattr(synthesis, "adversarial_loss", look)
    synthesise(*pair(trained), 8, plan_of(rounds, warmup, 2, 1, 5), 0)
    assert asked == [(5, 6)] * calls


def test_distillation_brings_the_student_to_the_teacher(trained):
    apart = []
    for steps in (0, 20):
        teacher, student = pair(trained)
        found = synthesise(teacher, student, 8, plan_of(4, 1, 2, steps, 24), 0)
        assert len(found.distilled) == 3
        x = network_input(found.images)
        with torch.no_grad():
            apart.append(float(divergence(student.train()(x), teacher(x), 20.0).mean()))
    assert apart[1] < 0.3 * apart[0]
    assert found.distilled[-1] < found.distilled[0]


def test_replayed_steps_of_the_student_learn_what_plain_ones_learn(trained, monkeypatch):
    monkeypatch.setattr(recorded, "record_graph", lambda step, pool: step() or step)
    plain = synthesise(*pair(trained), 8, plan_of(4, 1, 2, 5, 24), 0)
    plan = plan_of(4, 1, 2, 5, 24, execution="recorded")
    replayed = synthesise(*pair(trained), 8, plan, 0)
    assert len(plain.distilled) == 3
    np.testing.assert_allclose(replayed.distilled, plain.distilled, rtol=1e-3)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_replays_the_steps_of_the_student(trained):
    found = []
    for replayed in ("eager", "recorded"):
        plan = plan_of(2, 1, 1, 20, 24, execution=replayed, device="cuda")
        found.append(synthesise(*pair(trained, "cuda"), 8, plan, 0).distilled)
    np.testing.assert_allclose(found[1], found[0], rtol=0.05)


def test_batchnorm_distance_against_numpy(trained):
    """Sum over the layers of the distances of means and variances from the recorded ones."""
    teacher = teacher_network("small", trained, "cpu")
    x = normalise(torch.rand((5, 3, 8, 8), generator=torch.Generator().manual_seed(0)))
    by_hand, now = 0.0, x
    with torch.no_grad():
        for layer in teacher.body.layers:
            seen = layer[0](now).numpy()
            flat = seen.transpose(1, 0, 2, 3).reshape(seen.shape[1], -1).astype(np.float64)
            by_hand += np.linalg.norm(flat.mean(1) - layer[1].running_mean.numpy())
            by_hand += np.linalg.norm(flat.var(1) - layer[1].running_var.numpy())
            now = layer(now)
        with BatchNormDistance(teacher) as statistics:
            teacher(x)
            found = float(statistics.take())
    assert found == pytest.approx(by_hand, rel=1e-4)
