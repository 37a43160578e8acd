"""Few labels

Labelling is expensive, so each site has labels for only a few of its rows.
`margin_labels` predicts labels for the other rows at the site, from its own
labelled rows, before anything is sent.
"""

# %% [markdown]
# ## One site, one task, one label in ten
#
# Three sites see the digits in five tasks of two. `None` means that a row has
# no label.

# %%
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import fedran

X, y = load_digits(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(
    X / 16, y, test_size=1 / 3, random_state=0
)
phi = fedran.RandomFeatures(
    64, 512, kind="hellinger", source="digits, pixels / 16"
)
H = phi(X_train)
site_of_row = np.arange(len(y_train)) % 3
tasks = [(0, 1), (2, 3), (4, 5), (6, 7), (8, 9)]


def hide(labels, share, rng):
    """The labels with only this share of them left."""
    return [int(label) if rng.random() < share else None for label in labels]


here = (site_of_row == 0) & np.isin(y_train, (2, 3))
labels = hide(y_train[here], 0.1, np.random.default_rng(0))
guess = fedran.margin_labels(H[here], labels)
print(f"{len(labels) - labels.count(None)} of {len(labels)} rows are labelled")
print(guess.reason)

# %% [markdown]
# The rule gives a label only where the best class leads by a margin. Every
# decision can be inspected. We know the hidden labels here, so we can count the
# mistakes.

# %%
added = np.flatnonzero(guess.accepted)
wrong = [i for i in added if guess.labels[i] != y_train[here][i]]
print(f"{len(wrong)} of the {len(added)} predicted labels are wrong")

# %% [markdown]
# ## What it is worth
#
# Each site sends a summary per task, once of its labelled rows alone and once
# with the predicted labels. Rows that still have no label are left out. The
# figure repeats this for several shares, each with three draws of the labelled
# rows.


# %%
def accuracy(share, seed, predict_labels, tasks=tasks):
    rng = np.random.default_rng(seed)
    server = fedran.Aggregator(out_features=512, fingerprint=phi.fingerprint)
    for task, digits in enumerate(tasks):
        for site in range(3):
            here = (site_of_row == site) & np.isin(y_train, digits)
            labels = hide(y_train[here], share, rng)
            if predict_labels:
                labels = fedran.margin_labels(H[here], labels).labels
            summary = fedran.summarize(
                H[here], labels, 32, fingerprint=phi.fingerprint
            )
            server.absorb(summary, client=f"site-{site}", task=f"task-{task}")
    return 100 * np.mean(server.solve().predict(phi(X_test)) == y_test)


shares = [0.05, 0.1, 0.2, 0.5]
alone, predicted = (
    np.array(
        [[accuracy(share, seed, way) for share in shares] for seed in range(3)]
    )
    for way in (False, True)
)
everything = accuracy(1.0, 0, False)
for share, a, b in zip(shares, alone.mean(axis=0), predicted.mean(axis=0)):
    print(
        f"{100 * share:.0f} % labelled: {a:.1f} %, with predictions {b:.1f} %"
    )
print(f"100 % labelled: {everything:.1f} %")

# %%
import matplotlib.pyplot as plt

percent = 100 * np.array(shares)
for values, name in ((predicted, "with predictions"), (alone, "labels alone")):
    plt.plot(percent, values.mean(axis=0), label=name)
    plt.fill_between(
        percent, values.min(axis=0), values.max(axis=0), alpha=0.15
    )
plt.axhline(everything, color="grey", ls="--", marker="", label="all labels")
plt.title("Accuracy by the share of rows with a label (band: three draws)")
plt.xscale("log")
plt.xticks(percent, [f"{p:.0f} %" for p in percent])
plt.minorticks_off()
plt.ylabel("% right")
plt.legend()
plt.show()

# %% [markdown]
# ## Limits
#
# A site can only predict classes that it has labelled. What it adds is the
# knowledge that each row has one of its few classes. A site with two of ten
# classes adds much. A site with all of them adds only its mistakes: let all ten
# digits arrive in one task, and the rule does harm.
#
# `expected_wrong` tells the share of mistakes before anything is sent. It is
# the share of wrong labels among the site's labelled rows, each predicted from
# the others. The rule helps where this share is clearly below the error of the
# head without predicted labels.


# %%
def wrong_labels(share, seed, tasks):
    """Expected and true share of wrong labels over all sites and tasks."""
    rng = np.random.default_rng(seed)
    counts = np.zeros(3)
    for digits in tasks:
        for site in range(3):
            here = (site_of_row == site) & np.isin(y_train, digits)
            labels = hide(y_train[here], share, rng)
            guess = fedran.margin_labels(H[here], labels)
            added = np.flatnonzero(guess.accepted)
            truth = y_train[here]
            wrong = sum(guess.labels[i] != truth[i] for i in added)
            expected = np.nan_to_num(guess.expected_wrong) * len(added)
            counts += (len(added), expected, wrong)
    return 100 * counts[1:] / counts[0]


for name, split in (
    ("two at a time", tasks),
    ("all at once", [tuple(range(10))]),
):
    for share in shares:
        expected, wrong, alone, predicted = np.mean(
            [
                (
                    *wrong_labels(share, seed, split),
                    100 - accuracy(share, seed, False, split),
                    100 - accuracy(share, seed, True, split),
                )
                for seed in range(3)
            ],
            axis=0,
        )
        print(
            f"{name}, {100 * share:.0f} % labelled: labels {wrong:.0f} % wrong "
            f"({expected:.0f} % expected), head {alone:.1f} -> {predicted:.1f}"
        )

# %% [markdown]
# The last two numbers are the head's errors without and with predicted labels
# ([how-to](../how-to/few-labels.md), results on
# CIFAR-100 (`results/labels.jsonl`)).
