"""A few images that are easy to classify, and the rounds of a trained method, one by one."""

import numpy as np

from fedran.data.dataset import Dataset, as_images, image_dataset
from fedran.data.images import ArrayImages, ImageSet
from fedran_bench.methods.protocol import ClientData, Spec
from fedran_bench.methods.registry import make_method, settings
from fedran_bench.streams import Stream, Task

QUICK = {
    "n_rounds": 2,
    "epochs": 2,
    "batch": 8,
    "lr": 0.05,
    "augment": False,
    "memory_size": 8,
    "synthesis_rounds": 2,
    "warmup": 1,
    "generator_steps": 2,
    "distillation_steps": 2,
    "synthetic_batch": 6,
}


def quick(key, device=None, **more):
    """A method with few and short rounds."""
    known = settings(key)
    values = {"network": "small"} if key == "target" else {}
    values |= {k: v for k, v in QUICK.items() if k in known} | more
    return make_method(key, values, device)


def make_images(n=72, classes=6, seed=0, names=None):
    """Noisy patterns of 8 x 8 pixels, one per class. Their first pixels are the features."""
    rng = np.random.default_rng(seed)
    patterns = np.random.default_rng(99).integers(0, 256, (classes, 8, 8, 3))
    y = np.arange(n) % classes
    pixels = np.clip(patterns[y] + 25 * rng.standard_normal((n, 8, 8, 3)), 0, 255).astype(np.uint8)
    X = (pixels.reshape(n, -1)[:, :12] / 255).astype(np.float32)
    labels = y if names is None else np.array(names)[y]
    train = np.arange(n) < n * 2 // 3
    parts = [ArrayImages(pixels[train]), ArrayImages(pixels[~train])]
    return Dataset(
        "toy",
        "features",
        X[train],
        labels[train],
        X[~train],
        labels[~train],
        images=parts[0],
        test_images=parts[1],
    )


def blank_images(height, width, n=24):
    """Random images without features, of four classes."""
    X = np.random.default_rng(0).integers(0, 256, (n, height, width, 3), dtype=np.uint8)
    y = np.arange(n) % 4
    return image_dataset(ImageSet("blank", ArrayImages(X), y, ArrayImages(X), y))


def make_tasks(dataset, n_tasks=3, n_clients=3, seed=0):
    """Classes in order, equally many per task; rows are distributed at random."""
    classes = list(dict.fromkeys(dataset.y_train.tolist()))
    rng, tasks = np.random.default_rng(seed), []
    for t in range(n_tasks):
        chosen = tuple(classes[t * len(classes) // n_tasks : (t + 1) * len(classes) // n_tasks])
        rows = rng.permutation(np.flatnonzero(np.isin(dataset.y_train, chosen)))
        tasks.append(Task(chosen, tuple(np.array_split(rows, n_clients))))
    return Stream(tuple(tasks), {})


class Rounds:
    """The protocol, round by round. The last download is kept in ``message``."""

    def __init__(self, method, dataset, stream, seed=0):
        self.method, self.stream, self.seed = method, stream, seed
        self.data = as_images(dataset) if method.input == "images" else dataset
        size = 8 if method.input == "images" else None
        self.clients = tuple(f"client-{k}" for k in range(stream.n_clients))
        classes = tuple(t.classes for t in stream.tasks)
        self.spec = Spec(self.data.X_train.shape[-1], classes, self.clients, None, size)
        self.state = method.init(self.spec, seed)
        self.cstates = dict.fromkeys(self.clients)

    def rows(self, t, k):
        """One client's rows of a task."""
        rows = self.stream.tasks[t].rows[k]
        return ClientData(self.clients[k], str(t), self.data.X_train[rows], self.data.y_train[rows])

    def uploads(self, t, round_):
        """The uploads of all clients, whose states are updated."""
        self.message = self.method.broadcast(self.state, t, round_)
        sent = {}
        for k, name in enumerate(self.clients):
            self.cstates[name], sent[name] = self.method.client(
                self.cstates[name], self.message, self.rows(t, k), self.seed
            )
        return sent

    def one(self, t, round_):
        """One round; returns its uploads."""
        sent = self.uploads(t, round_)
        self.state = self.method.aggregate(self.state, t, round_, sent)
        return sent

    def task(self, t):
        """All rounds of a task."""
        for round_ in range(self.method.rounds(t)):
            self.one(t, round_)
        return self

    def run(self, tasks):
        """The first few tasks."""
        for t in range(tasks):
            self.task(t)
        return self


def saved(rounds):
    """The server's state as bytes."""
    from fedran_bench.methods.trained.messages import add_prefix, pack_tensors

    state = rounds.state
    fields = {"task": state.task, "known": state.known, "classes": list(state.classes)}
    tensors = add_prefix("model", state.weights) | add_prefix("extra", state.extra)
    return pack_tensors("state", fields, tensors)


def same(one, other):
    """Whether two sets of tensors are equal bit for bit."""
    import torch

    return one.keys() == other.keys() and all(torch.equal(one[n], other[n]) for n in one)
