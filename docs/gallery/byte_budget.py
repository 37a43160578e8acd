"""Choosing a message for a byte budget

A site may send a summary of any rank or a mixture of any group size.
`fedran.plan` says which of them fits a budget. This page measures the accuracy
of both over the bytes that were sent.
"""

# %% [markdown]
# ## What fits into 16 KiB?
#
# Five sites with about 240 rows each, 64 features and ten classes. The server
# uses 1,024 random features.

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
    64, 1024, kind="hellinger", source="digits, pixels / 16"
)

p = fedran.plan(
    budget_bytes=16 * 1024,
    out_features=1024,
    n_classes=10,
    in_features=64,
    n_rows=240,
)
print("message:", p.message)
print(f"a summary: rank {p.rank}, {p.upload} bytes")
print(
    f"a mixture: groups of {p.group_size} rows, about {p.mixture_upload} bytes"
)

# %% [markdown]
# On the command line:
#
# ```console
# $ fedran plan --budget 16KiB --out-features 1024 --classes 10 \
#     --in-features 64 --rows 240
# ```
#
# ## Both messages at several sizes
#
# A summary grows with its rank and with the number of random features. A
# mixture holds means of groups of rows of one class, so it grows with the
# number of groups only.


# %%
def measure(make):
    """Mean bytes of the five uploads, and the accuracy of the classifier."""
    server = fedran.Aggregator(out_features=1024, fingerprint=phi.fingerprint)
    size = 0
    for site in range(5):
        upload = fedran.encode(make(X_train[site::5], y_train[site::5]))
        size += len(upload) / 5
        server.absorb(
            fedran.decode(upload), client=f"site-{site}", task="digits"
        )
    return size, 100 * np.mean(server.solve().predict(phi(X_test)) == y_test)


summaries = {
    rank: measure(
        lambda Z, y, rank=rank: fedran.summarize(
            phi(Z), y, rank, fingerprint=phi.fingerprint
        )
    )
    for rank in (1, 4, 16, 32, 64, 128)
}
mixtures = {
    size: measure(
        lambda Z, y, size=size: fedran.condense(
            Z, y, phi, group_size=size, min_group=3
        )
    )
    for size in (3, 6, 12, 24)
}
for rank, (size, right) in summaries.items():
    print(f"summary, rank {rank:3}: {size / 1024:4.1f} KiB, {right:.1f} %")
for group, (size, right) in mixtures.items():
    print(f"mixture, groups of {group:2}: {size / 1024:.1f} KiB, {right:.1f} %")

# %%
import matplotlib.pyplot as plt

for found, name in (
    (summaries, "summaries, by rank"),
    (mixtures, "mixtures, by group size"),
):
    sizes, rights = np.array(list(found.values())).T
    plt.plot(sizes / 1024, rights, label=name)
    for setting, size, right in zip(found, sizes, rights, strict=True):
        plt.annotate(
            setting,
            (size / 1024, right),
            (3, -10),
            textcoords="offset points",
            fontsize=7.5,
        )
rows = X_train.size / 5
plt.axvline(
    rows / 1024, color="grey", ls="--", marker="", label="all rows in 8 bits"
)
plt.title("Accuracy by the bytes that each site sends")
plt.xscale("log")
plt.xticks([2, 5, 10, 20, 50], [2, 5, 10, 20, 50])
plt.minorticks_off()
plt.xlabel("KiB per upload")
plt.ylabel("% right")
plt.legend(loc="lower right")
plt.show()

# %% [markdown]
# ## An exact limit
#
# `encode` can be given the limit itself. It then truncates the summary until
# the bytes fit.

# %%
summary = fedran.summarize(
    phi(X_train[::5]), y_train[::5], 64, fingerprint=phi.fingerprint
)
upload = fedran.encode(summary, max_bytes=16 * 1024)
print(
    len(upload), "bytes, rank", fedran.decode(upload, kind=fedran.Summary).rank
)

# %% [markdown]
# The digits have only 64 features, so sending them is cheap, but it would
# reveal every row. On features of real backbones the difference is larger: see
# [Which message for which
# budget](../how-to/budget.md#which-message-for-which-budget) for CIFAR-100.
