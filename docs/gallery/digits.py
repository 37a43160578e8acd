"""Digits in five minutes

Ten handwritten digits arrive in five tasks of two, at five sites. Each site
sends one message per task. The classifier knows every digit after every task
and forgets nothing, while a network layer that is trained task by task forgets.
"""

# %% [markdown]
# ## The data
#
# Scikit-learn's digits: 1,797 images of 8 x 8 pixels. The pixels are the
# features, so there is no backbone here. A third of the rows is kept for
# testing. Every row belongs to one of five sites.

# %%
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

X, y = load_digits(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(
    X / 16, y, test_size=1 / 3, random_state=0
)
site_of_row = np.random.default_rng(0).integers(0, 5, len(y_train))
tasks = [(0, 1), (2, 3), (4, 5), (6, 7), (8, 9)]

# %% [markdown]
# ## What all sites agree on
#
# How rows are prepared. Its fingerprint travels with every message, and a
# server refuses messages of other features.

# %%
import fedran

phi = fedran.KernelFeatures(
    in_features=64, kind="hellinger", source="digits, pixels / 16"
)

# %% [markdown]
# ## One message per site and task
#
# `condense` and `encode` run at the site. `decode` and `absorb` run at the
# server, and `solve` gives the classifier of everything absorbed so far.


# %%
def upload(site, digits):
    rows = (site_of_row == site) & np.isin(y_train, digits)
    points = fedran.condense(
        phi(X_train[rows]), y_train[rows], fingerprint=phi.fingerprint
    )
    return fedran.encode(points)


server = fedran.Aggregator(fingerprint=phi.fingerprint)
accuracy = []
for number, digits in enumerate(tasks, start=1):
    for site in range(5):
        message = upload(site, digits)
        server.absorb(
            fedran.decode(message), client=f"site-{site}", task=f"task-{number}"
        )
    head = server.solve()
    seen = np.isin(y_test, head.classes)
    accuracy.append(
        100 * np.mean(head.predict(phi(X_test[seen])) == y_test[seen])
    )
    print(f"{len(head.classes):2} digits seen: {accuracy[-1]:.1f} % right")
print(f"the last message had {len(message) / 1024:.1f} KiB")
print(f"expected by leave-one-out: {100 * head.diagnosis.accuracy:.1f} % right")

# %% [markdown]
# ## Two yardsticks
#
# The best that this classifier could do is one fit over all rows in one place,
# which are not rounded. What training does is shown by a linear layer on 1024
# random features, trained with gradient steps on one task after the other. It
# gets all rows of a task at once, without any federation.

# %%
from sklearn.linear_model import SGDClassifier

pooled = fedran.Aggregator(fingerprint=phi.fingerprint)
every_row = fedran.condense(phi(X_train), y_train, fingerprint=phi.fingerprint)
pooled.absorb(every_row, client="all", task="all")
best = 100 * np.mean(pooled.solve().predict(phi(X_test)) == y_test)
print(f"all rows in one place: {best:.1f} % right")

wide = fedran.RandomFeatures(64, 1024, kind="hellinger")
layer = SGDClassifier(loss="log_loss", random_state=0)
trained = []
for digits in tasks:
    rows = np.isin(y_train, digits)
    for _ in range(10):
        layer.partial_fit(
            wide(X_train[rows]), y_train[rows], classes=np.arange(10)
        )
    seen = y_test <= max(digits)
    trained.append(100 * layer.score(wide(X_test[seen]), y_test[seen]))
print(f"trained task by task: {trained[-1]:.1f} % right")

# %%
import matplotlib.pyplot as plt

plt.plot(range(1, 6), accuracy, label="fedran, one message per site and task")
plt.plot(range(1, 6), trained, label="a layer trained task by task")
plt.title("Accuracy over all digits seen so far")
plt.xlabel("tasks learned")
plt.ylabel("% right")
plt.xticks(range(1, 6))
plt.ylim(0, 103)
plt.legend()
plt.show()

# %% [markdown]
# ## Where to go next
#
# - [Tutorial](../tutorial.md): the same calls, explained one by one.
# - [Your own images](own_images.md): features of a backbone instead of pixels.
# - [A federation on one machine](federation.md): the same with processes, keys
#   and TLS.
