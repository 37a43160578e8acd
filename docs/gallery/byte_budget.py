"""Choosing a message for a byte budget

A site sends points: every row, or means of groups of rows, in finer or coarser
steps. `fedran.plan` says which of them fit a budget. This page measures the
accuracy over the bytes that were sent.
"""

# %% [markdown]
# ## What fits into 4 KiB?
#
# Five sites with about 240 rows each, 64 features and ten classes.

# %%
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import fedran

X, y = load_digits(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(
    X / 16, y, test_size=1 / 3, random_state=0
)
phi = fedran.KernelFeatures(64, kind="hellinger", source="digits, pixels / 16")

for budget in (8192, 4096, 2048):
    p = fedran.plan(budget, in_features=64, n_classes=10, rows=240)
    print(
        f"{budget} bytes: every row fits: {p.all_rows_fit}; send groups of "
        f"{p.group_size}, step {p.step:g}, about {p.upload} bytes"
    )

# %% [markdown]
# On the command line:
#
# ```console
# $ fedran plan --budget 4KiB --classes 10 --in-features 64 --rows 240
# ```
#
# ## Points of several sizes
#
# Larger groups and coarser steps make a message smaller. A group size of 1
# sends every row. With `min_group=5` every mean is one of at least five rows.


# %%
def measure(group_size, min_group=1, step=1.0):
    """Mean bytes of the five uploads, and the accuracy of the classifier."""
    server = fedran.Aggregator(fingerprint=phi.fingerprint)
    size = 0
    for site in range(5):
        points = fedran.condense(
            phi(X_train[site::5]),
            y_train[site::5],
            group_size,
            min_group,
            fingerprint=phi.fingerprint,
        )
        upload = fedran.encode(points, step=step)
        size += len(upload) / 5
        server.absorb(
            fedran.decode(upload), client=f"site-{site}", task="digits"
        )
    return size, 100 * np.mean(server.solve().predict(phi(X_test)) == y_test)


groups = {size: measure(size) for size in (1, 2, 3, 5, 8, 12)}
least = {size: measure(size, min_group=size) for size in (3, 5, 8)}
steps = {step: measure(1, step=step) for step in (1.0, 1.5, 2.0, 3.0)}
for size, (upload, right) in groups.items():
    print(f"groups of {size:2}: {upload / 1024:.1f} KiB, {right:.1f} %")
for size, (upload, right) in least.items():
    print(f"at least {size} rows: {upload / 1024:.1f} KiB, {right:.1f} %")
for step, (upload, right) in steps.items():
    print(f"every row, step {step}: {upload / 1024:.1f} KiB, {right:.1f} %")

# %%
import matplotlib.pyplot as plt

for found, name in (
    (groups, "by group size"),
    (least, "by least group size"),
    (steps, "every row, by step"),
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
plt.xticks([1, 2, 5, 10, 20], [1, 2, 5, 10, 20])
plt.minorticks_off()
plt.xlabel("KiB per upload")
plt.ylabel("% right")
plt.legend(loc="lower center")
plt.show()

# %% [markdown]
# `plan` estimates the size before any row is read. `len(upload)` is the size
# that counts. A site of a federation makes its groups larger until the upload
# fits `budget_bytes`.
#
# On features of real backbones the difference is larger: see
# [Which message for which
# budget](../how-to/budget.md#which-message-for-which-budget) for CIFAR-100.
