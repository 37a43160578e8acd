"""TARGET: images from a model alone, and clients that distil on them."""

import numpy as np
import pytest

from helpers.toy_training import Rounds, make_images, make_tasks, quick, same

torch = pytest.importorskip("torch")

from fedran.bench.run.runner import Run, run  # noqa: E402
from fedran.methods.registry import make_method  # noqa: E402
from fedran.methods.trained.target import TARGET  # noqa: E402
from fedran.methods.trained.training import synthesis, workbench  # noqa: E402
from fedran.methods.trained.training.generator import seeded_generator  # noqa: E402
from fedran.methods.trained.training.local import generator  # noqa: E402
from fedran.methods.trained.training.losses import divergence  # noqa: E402
from fedran.methods.trained.training.messages import unpack_tensors  # noqa: E402
from fedran.methods.trained.training.state import Work  # noqa: E402
from fedran.methods.trained.training.synthesis import Plan, Statistics, synthesise  # noqa: E402
from fedran.methods.trained.training.tensors import Rows, inputs, normalised  # noqa: E402


@pytest.fixture(scope="module")
def dataset():
    return make_images()


@pytest.fixture(scope="module")
def stream(dataset):
    return make_tasks(dataset, n_tasks=3, n_clients=2)


@pytest.fixture(scope="module")
def trained(dataset):
    """The weights of a small network that tells all classes apart."""
    method = quick("finetune", network="small", n_rounds=8, epochs=4)
    rounds = Rounds(method, dataset, make_tasks(dataset, n_tasks=1, n_clients=1)).run(1)
    right = method.predict(rounds.state, rounds.data.X_test) == rounds.data.y_test
    assert right.mean() > 0.8
    return rounds.state.weights


def pair(weights):
    return (f("small", weights, "cpu") for f in (workbench.teacher, workbench.student))


def everything(network):
    return {n: t.clone() for n, t in network.state_dict().items()}


@pytest.fixture(scope="module")
def early(trained):
    """Ten rounds of synthesis, all of them before the warm-up."""
    return synthesise(*pair(trained), 8, Plan(8, 20, 8, 5, 24), 0, "cpu")


def test_the_generator_lowers_its_loss_within_a_round(early):
    losses = np.array(early.losses)
    assert losses.shape == (8, 8)
    assert losses[:, -1].mean() < losses[:, 0].mean()
    assert (losses.min(1) < losses[:, 0]).mean() > 0.7


def test_the_generator_lowers_its_loss_over_rounds(early):
    losses = np.array(early.losses)
    assert losses[-3:].mean() < 0.9 * losses[:3].mean()


def test_the_generator_itself_learns(trained, monkeypatch):
    """On noise it has not seen: the loss of its images before and after all rounds."""
    teacher, student = pair(trained)
    made = []

    def remembered(size, seed):
        made.append(seeded_generator(size, seed))
        return made[-1]

    monkeypatch.setattr(synthesis, "seeded_generator", remembered)
    synthesise(teacher, student, 8, Plan(8, 20, 3, 0, 24), 0, "cpu")
    z = torch.randn((64, 256), generator=torch.Generator().manual_seed(77))
    losses = []
    for network in (seeded_generator(8, 0), made[0]):
        labels, random = torch.arange(64) % 6, torch.Generator().manual_seed(5)
        with torch.no_grad(), Statistics(teacher) as statistics:
            images = network.train()(z)
            loss = synthesis.synthesis_loss(
                images, labels, teacher, None, statistics, random, "cpu"
            )
            losses.append(float(loss))
    assert losses[1] < 0.9 * losses[0]


def test_the_images_look_to_the_teacher_more_like_what_it_knows(trained, early):
    """Statistics of every layer: those of the last images are nearer than those of the first."""
    teacher, distance = workbench.teacher("small", trained, "cpu"), []
    for images in (early.images[:24], early.images[-24:]):
        with torch.no_grad(), Statistics(teacher) as statistics:
            teacher(inputs(images))
            distance.append(float(statistics.take()))
    assert distance[1] < distance[0]


@pytest.mark.parametrize(("rounds", "batch", "size"), [(1, 2, 8), (3, 5, 16), (2, 7, 32)])
def test_images_are_bytes_of_the_right_shape(trained, rounds, batch, size):
    found = synthesise(*pair(trained), size, Plan(rounds, 9, 1, 1, batch), 0, "cpu")
    assert found.images.shape == (rounds * batch, 3, size, size)
    assert found.images.dtype == torch.uint8
    assert len(found.images.unique()) > 20


def test_the_seed_decides(trained):
    plan = Plan(2, 1, 2, 2, 4)
    found = [synthesise(*pair(trained), 8, plan, seed, "cpu").images for seed in (0, 0, 1)]
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


@pytest.mark.parametrize("plan", [Plan(3, 1, 2, 3, 6), Plan(2, 5, 2, 3, 6)])
def test_the_teacher_is_untouched_and_the_hooks_are_gone(trained, plan):
    teacher, student = pair(trained)
    before = everything(teacher)
    synthesise(teacher, student, 8, plan, 0, "cpu")
    assert same(everything(teacher), before)
    assert not teacher.training
    for network in (teacher, student):
        assert not any(m._forward_pre_hooks or m._forward_hooks for m in network.modules())
    assert all(p.grad is None for p in teacher.parameters())


def test_the_hooks_are_gone_after_a_failure_too(trained, monkeypatch):
    teacher, student = pair(trained)
    monkeypatch.setattr(synthesis, "synthesis_loss", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        synthesise(teacher, student, 8, Plan(1, 1, 1, 1, 4), 0, "cpu")
    assert not any(m._forward_pre_hooks for m in teacher.modules())


def test_nothing_is_distilled_before_the_warm_up(trained, early, monkeypatch):
    assert early.distilled == []
    monkeypatch.setattr(synthesis, "_distil", lambda *_: 1 / 0)
    monkeypatch.setattr(synthesis, "adversarial_loss", lambda *_: 1 / 0)
    found = synthesise(*pair(trained), 8, Plan(3, 3, 1, 5, 4), 0, "cpu")
    assert found.distilled == []
    with pytest.raises(ZeroDivisionError):
        synthesise(*pair(trained), 8, Plan(4, 3, 1, 5, 4), 0, "cpu")


@pytest.mark.parametrize(("rounds", "warmup", "calls"), [(3, 3, 0), (3, 2, 2), (3, 0, 6)])
def test_the_adversarial_term_acts_from_the_warm_up_on(trained, monkeypatch, rounds, warmup, calls):
    asked, plain = [], synthesis.adversarial_loss

    def look(student, teacher):
        asked.append(student.shape)
        return plain(student, teacher)

    monkeypatch.setattr(synthesis, "adversarial_loss", look)
    synthesise(*pair(trained), 8, Plan(rounds, warmup, 2, 1, 5), 0, "cpu")
    assert asked == [(5, 6)] * calls


def test_distillation_brings_the_student_to_the_teacher(trained):
    apart = []
    for steps in (0, 20):
        teacher, student = pair(trained)
        found = synthesise(teacher, student, 8, Plan(4, 1, 2, steps, 24), 0, "cpu")
        assert len(found.distilled) == 3
        x = inputs(found.images)
        with torch.no_grad():
            apart.append(float(divergence(student.train()(x), teacher(x), 20.0).mean()))
    assert apart[1] < 0.3 * apart[0]
    assert found.distilled[-1] < found.distilled[0]


def test_the_first_look_at_statistics_by_hand(trained):
    """Sum over the layers of the distances of means and variances from the recorded ones."""
    teacher = workbench.teacher("small", trained, "cpu")
    x = normalised(torch.rand((5, 3, 8, 8), generator=torch.Generator().manual_seed(0)))
    by_hand, now = 0.0, x
    with torch.no_grad():
        for layer in teacher.body.layers:
            seen = layer[0](now).numpy()
            flat = seen.transpose(1, 0, 2, 3).reshape(seen.shape[1], -1).astype(np.float64)
            by_hand += np.linalg.norm(flat.mean(1) - layer[1].running_mean.numpy())
            by_hand += np.linalg.norm(flat.var(1) - layer[1].running_var.numpy())
            now = layer(now)
        with Statistics(teacher) as statistics:
            teacher(x)
            found = float(statistics.take())
    assert found == pytest.approx(by_hand, rel=1e-4)


@pytest.mark.parametrize("size", [8, 12, 32])
def test_the_generator_makes_pixels_and_depends_on_its_seed(size):
    z = torch.randn((3, 256), generator=torch.Generator().manual_seed(0))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        first = seeded_generator(size, 4)
        torch.manual_seed(2)
        second, other = seeded_generator(size, 4), seeded_generator(size, 5)
    with torch.no_grad():
        images = first(z)
        assert images.shape == (3, 3, size, size)
        assert bool(((images >= 0) & (images <= 1)).all())
        assert torch.equal(images, second(z))
        assert not torch.equal(images, other(z))


def test_as_published_nothing_is_ever_distilled(dataset, stream, monkeypatch):
    monkeypatch.setattr(synthesis, "_distil", lambda *_: 1 / 0)
    monkeypatch.setattr(synthesis, "adversarial_loss", lambda *_: 1 / 0)
    method = quick(
        "target",
        flavour="as_published",
        synthesis_rounds=None,
        warmup=20,
        generator_steps=1,
        synthetic_batch=4,
        n_rounds=1,
        epochs=1,
    )
    assert method.planned_rounds == 10
    rounds = Rounds(method, dataset, stream).run(1)
    assert rounds.state.extra["synthetic"].shape == (40, 3, 8, 8)
    corrected = quick("target", synthesis_rounds=None, warmup=20)
    assert corrected.planned_rounds > corrected.warmup


def test_images_come_down_once_a_task_and_not_after_the_last(dataset, stream):
    method = quick("target")
    rounds = Rounds(method, dataset, stream)
    images = method.planned_rounds * method.synthetic_batch
    for t in range(3):
        sizes = []
        for r in range(method.rounds(t)):
            rounds.one(t, r)
            found = unpack_tensors("global-model", rounds.message, "cpu").tensors
            extra = {n for n in found if n.startswith("extra/")}
            closing = r == method.n_rounds
            assert extra == ({"extra/synthetic"} if closing and t < 2 else set())
            sizes.append(len(rounds.message))
        more = sizes[-1] - sizes[0]
        assert (images * 192 <= more < images * 192 + 300) if t < 2 else abs(more) < 20
        made = rounds.state.extra.get("synthetic")
        assert (made is None) == (t == 2)
        for memory in rounds.cstates.values():
            assert memory["synthetic"].shape == (images, 3, 8, 8)
    result = run(Run("target", method, dataset, stream))
    down = [t.bytes_down[0] for t in result.tasks]
    plain = run(Run("finetune", quick("finetune", network="small"), dataset, stream))
    model = [t.bytes_down[0] / t.rounds for t in plain.tasks]
    for t in range(3):
        expected = 3 * model[t] + (images * 192 if t < 2 else 0)
        assert down[t] == pytest.approx(expected, abs=300)
    assert all(t.bytes_up[0] < 3 * model[0] * 1.1 for t in result.tasks)


def batches_seen(method, dataset, stream, task):
    """The sizes of everything that clients' students look at in the rounds of a task."""
    rounds, seen = Rounds(method, dataset, stream).run(task), []
    network = workbench.student("small", rounds.state.weights, "cpu")
    handle = network.register_forward_pre_hook(lambda _, x: seen.append(len(x[0])))
    try:
        rounds.uploads(task, 0)
    finally:
        handle.remove()
    return seen


def test_every_real_batch_comes_with_a_synthetic_one(dataset, stream):
    method = quick("target", batch=4, epochs=2)
    assert batches_seen(method, dataset, stream, 0) == [4, 4] * 2 * 2
    assert batches_seen(method, dataset, stream, 1) == [4, 4] * 2 * 2 * 2


@pytest.mark.parametrize(("batch", "expected"), [(3, [3, 3, 3, 3, 2, 3]), (6, [6, 6, 2, 6])])
def test_the_synthetic_batch_has_the_size_of_a_full_one(dataset, stream, batch, expected):
    method = quick("target", batch=batch, epochs=1)
    assert batches_seen(method, dataset, stream, 1) == expected * 2


def test_as_published_an_epoch_ends_with_the_synthetic_images(dataset, stream):
    """12 images make one batch of up to 500, so an epoch has one batch."""
    method = quick("target", batch=2, epochs=3, flavour="as_published")
    assert batches_seen(method, dataset, stream, 1) == [2, 500] * 3 * 2
    assert TARGET(flavour="as_published").synthetic_size() == 500


@pytest.mark.parametrize("seed", range(3))
def test_the_loss_by_hand(trained, seed):
    """Cross-entropy of real rows over the new logits, distillation on drawn synthetic ones."""
    method, random = quick("target", strength=2.0, batch=5), torch.Generator().manual_seed(seed)
    real, made = (
        torch.randint(0, 256, (n, 3, 8, 8), generator=random).to(torch.uint8) for n in (6, 9)
    )
    old = {**trained, **{n: trained[n][:4] + 0.1 for n in ("head.weight", "head.bias")}}
    codes = torch.tensor([4, 5, 4, 4, 5, 5])
    work = Work(
        1, 0, 4, (), {}, {}, Rows(real, codes), {"synthetic": made}, generator("draw", seed)
    )
    work.network = workbench.student("small", trained, "cpu")
    work.teacher = workbench.teacher("small", old, "cpu")
    found = float(method.loss(work, real, codes).detach())
    drawn = torch.randint(9, (5,), generator=generator("draw", seed))
    with torch.no_grad():
        logits, student = (work.network(inputs(x)).numpy() for x in (real, made[drawn]))
        teacher = work.teacher(inputs(made[drawn])).numpy()

    def log_softmax(x):
        x = x.astype(np.float64)
        return x - np.log(np.exp(x).sum(1, keepdims=True))

    value = -log_softmax(logits[:, 4:])[np.arange(6), codes.numpy() - 4].mean()
    soft = np.exp(log_softmax(teacher / 2))
    value -= 2 * (soft * log_softmax(student[:, :4] / 2)).sum(1).mean()
    assert found == pytest.approx(value, rel=1e-4)


@pytest.mark.parametrize("seed", [1])
def test_distilling_keeps_the_teachers_answers(dataset, stream, seed):
    """On the synthetic images, normalised among themselves as in training."""
    moved = []
    for strength in (0.0, 10.0):
        method = quick(
            "target", strength=strength, n_rounds=6, lr=0.02, weight_decay=0.0, synthetic_batch=16
        )
        rounds = Rounds(method, dataset, stream, seed).run(1)
        x = inputs(rounds.state.extra["synthetic"])
        then = workbench.teacher("small", rounds.state.weights, "cpu")(x)
        rounds.task(1)
        now = workbench.student("small", rounds.state.weights, "cpu")(x).detach()[:, :2]
        moved.append(float((torch.softmax(now, 1) - torch.softmax(then, 1)).abs().mean()))
    assert moved[1] < 0.7 * moved[0]


def test_a_head_is_refused():
    with pytest.raises(ValueError, match="network must be one of small, resnet18, resnet18-7x7"):
        make_method("target", {"network": "head"})
