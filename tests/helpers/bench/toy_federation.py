"""Small federations, and what every reference here starts from: float64, loops, no fedran."""

from dataclasses import dataclass, field

import numpy as np
from scipy.special import ndtr

from fedran_bench.methods.protocol import ClientData, Spec

TASKS = ((0, 1, 2), (3, 4), (1, 5))
"""Classes of each task: new ones arrive later, and class 1 comes back."""
LABELS = {
    "int": (-7, 3, 4, 10, 200, 5000),
    "str": ("f", "b", "ant", "z", "a", "10"),
    "mixed": (4, "b", -1, "7", 10, "a"),
}


@dataclass
class Toy:
    """tasks[t][k] = (X, y): what client k holds in task t."""

    tasks: list
    X_test: np.ndarray
    extract: object = None
    images: dict = field(default_factory=dict)

    @property
    def width(self):
        return self.X_test.shape[1]

    @property
    def spec(self):
        classes = tuple(tuple({c for _, y in task for c in y}) for task in self.tasks)
        clients = tuple(f"client-{k}" for k in range(len(self.tasks[0])))
        return Spec(self.width, classes, clients, self.extract)

    def data(self, t, k):
        X, y = self.tasks[t][k]
        return ClientData(f"client-{k}", str(t), X, list(y), self.images.get((t, k)))

    def uploads(self, method, t, seed=0, message=b"", cstates=None):
        """What every client sends. ``cstates`` is updated; without it they start anew."""
        cstates, sent = {} if cstates is None else cstates, {}
        for k in range(len(self.tasks[t])):
            data = self.data(t, k)
            before = cstates.get(data.client)
            cstates[data.client], sent[data.client] = method.client(before, message, data, seed)
        return sent

    def play(self, method, seed=0, upto=None, clients=None):
        """The server's state after the first ``upto`` tasks; ``clients``: their method."""
        state, cstates = method.init(self.spec, seed), {}
        for t in range(len(self.tasks) if upto is None else upto):
            for r in range(method.rounds(t)):
                message = method.broadcast(state, t, r)
                sent = self.uploads(clients or method, t, seed, message, cstates)
                state = method.aggregate(state, t, r, sent)
        return state

    def pooled(self, upto=None):
        """Rows in float64 and labels of the first ``upto`` tasks, client after client."""
        parts = [part for task in self.tasks[:upto] for part in task]
        return np.concatenate([X for X, _ in parts]).astype(np.float64), [
            c for _, y in parts for c in y
        ]


def make_toy(seed=0, kind="int", d=8, rows=14, clients=3, noise=0.6):
    """Three tasks; the last client has nothing in the second one."""
    rng = np.random.default_rng([seed, 99])
    centres = 2 * rng.standard_normal((6, d))
    tasks = []
    for t, classes in enumerate(TASKS):
        codes = np.repeat(classes, rows)
        X = (centres[codes] + noise * rng.standard_normal((len(codes), d))).astype(np.float32)
        holders = rng.integers(clients - (t == 1 and clients > 1), size=len(codes))
        tasks.append(
            [
                (X[holders == k], [LABELS[kind][c] for c in codes[holders == k]])
                for k in range(clients)
            ]
        )
    return Toy(tasks, (2 * rng.standard_normal((200, d))).astype(np.float32))


def in_order(labels):
    """Ints before strs, each sorted."""
    ints = sorted({c for c in labels if not isinstance(c, str)})
    return [*ints, *sorted({c for c in labels if isinstance(c, str)})]


def random_features(Z, M, seed, kind="cosine", bias=False):
    """Row after row in float64; P from N(0, 1), unscaled, rounded to float32."""
    P = np.random.RandomState(seed).standard_normal((Z.shape[1] + bias, M)).astype(np.float32)
    H = np.zeros((len(Z), M))
    for h, z in zip(H, Z.astype(np.float64), strict=True):
        z = np.sqrt(z) if kind == "hellinger" else z
        z = np.append(z, np.sqrt(len(z))) if bias else z
        if kind == "relu":
            h[:] = np.maximum(z @ P.astype(np.float64), 0.0)
        elif z.any():
            u = (z / np.abs(z).max() / np.linalg.norm(z / np.abs(z).max())) @ P.astype(np.float64)
            h[:] = u * ndtr(u)
    return H


def relu_features(Z, M, seed):
    """H = max(Z P, 0), as in the FedRAN paper and in RanPAC."""
    return random_features(Z, M, seed, "relu")


def gram_and_sums(H, y, classes):
    """H'H and H'Y, row after row."""
    G, B = np.zeros((H.shape[1], H.shape[1])), np.zeros((H.shape[1], len(classes)))
    for h, c in zip(H, y, strict=True):
        G += np.outer(h, h)
        B[:, classes.index(c)] += h
    return G, B


def ridge(H, y, classes, lam):
    """(H'H + lam I)^-1 H'Y."""
    G, B = gram_and_sums(H, y, classes)
    return np.linalg.solve(G + lam * np.eye(len(G)), B)


def unit(W):
    """Each column divided by its norm."""
    return np.stack([w / np.linalg.norm(w) for w in W.T], axis=1)


def distance(found, wanted):
    """Relative Frobenius error."""
    assert found.shape == wanted.shape
    return np.linalg.norm(np.asarray(found, np.float64) - wanted) / np.linalg.norm(wanted)


def assert_labels(found, scores, classes, clear=1e-3):
    """The best class of every row whose lead exceeds rounding; most rows must have such a lead."""
    checked = 0
    for label, row in zip(found, scores, strict=True):
        second, best = np.sort(row)[-2:]
        if best - second > clear * np.abs(scores).max():
            assert label == classes[int(np.argmax(row))]
            checked += 1
    assert checked > 0.8 * len(scores)


def with_images(toy):
    """Every row gets an image (its bytes and a tail of its own length), the server a backbone."""
    known = {}
    for t, task in enumerate(toy.tasks):
        for k, (X, _) in enumerate(task):
            toy.images[t, k] = [x.tobytes() + b"\n" * (i % 5) for i, x in enumerate(X)]
            known.update(zip(toy.images[t, k], X, strict=True))
    empty = np.zeros((0, toy.width), dtype=np.float32)
    toy.extract = lambda batch: np.stack([known[b] for b in batch]) if batch else empty
    return toy
