"""Removing a site

A site leaves, or its labels turn out to be wrong. The server deletes its
messages and solves again from the others. The result is bit for bit the
classifier that never saw the site.
"""

# %% [markdown]
# ## Four sites, one of which confuses digits
#
# Sites 0 to 2 are correct. Site 3 labels every 3 as 8 and every 8 as 3.

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
site_of_row = np.random.default_rng(0).choice(
    4, len(y_train), p=[0.2, 0.2, 0.2, 0.4]
)

labels = y_train.copy()
labels[(site_of_row == 3) & (y_train == 3)] = 8
labels[(site_of_row == 3) & (y_train == 8)] = 3

uploads = {}
for site in range(4):
    rows = site_of_row == site
    points = fedran.condense(
        phi(X_train[rows]), labels[rows], fingerprint=phi.fingerprint
    )
    uploads[f"site-{site}"] = fedran.encode(points)


def server_of(names):
    """A new server that absorbs the stored uploads of these sites."""
    server = fedran.Aggregator(fingerprint=phi.fingerprint)
    for name in names:
        server.absorb(fedran.decode(uploads[name]), client=name, task="may")
    return server


def accuracy_per_digit(head):
    right = head.predict(phi(X_test)) == y_test
    return np.array(
        [100 * right[y_test == digit].mean() for digit in range(10)]
    )


everyone = server_of(uploads)
before = accuracy_per_digit(everyone.solve())
print(f"all sites: 3 is {before[3]:.0f} % right, 8 is {before[8]:.0f} % right")

# %% [markdown]
# ## Which site is it?
#
# Ask what all other sites say about the points of a site. This needs no rows
# that somebody trusts. A label that is often contradicted is wrong at this site
# or at the others.

# %%
for name, opinions in everyone.what_others_say().items():
    shares = {label: 100 * o.wrong / o.asked for label, o in opinions.items()}
    worst = sorted(shares, key=shares.get, reverse=True)[:2]
    print(
        name, ", ".join(f"{d}: {shares[d]:.0f} % contradicted" for d in worst)
    )

# %% [markdown]
# `solve_without` answers "what if this site were not there", without a new
# server. Rows that you trust, here the test rows, show which site does harm.

# %%
for name, upload in uploads.items():
    head = everyone.solve_without([fedran.decode(upload)])
    change = accuracy_per_digit(head).mean() - before.mean()
    print(f"without {name}: {change:+.1f} points")

# %% [markdown]
# ## Remove it
#
# The uploads are the server's data, and everything else follows from them. To
# remove a site for good, delete its uploads and solve from the others.

# %%
del uploads["site-3"]
rebuilt = server_of(uploads).solve()
after = accuracy_per_digit(rebuilt)
print(
    f"without site-3: 3 is {after[3]:.0f} % right, 8 is {after[8]:.0f} % right"
)

# %% [markdown]
# Is anything of the site left? A server that never heard of it gives the same
# bytes, also if the uploads arrive in another order.

# %%
never = server_of(sorted(uploads, reverse=True)).solve()
print("same bytes:", fedran.encode(rebuilt) == fedran.encode(never))

# %%
import matplotlib.pyplot as plt

digits = np.arange(10)
plt.bar(digits - 0.2, before, width=0.4, label="with site 3")
plt.bar(digits + 0.2, after, width=0.4, label="without site 3")
plt.title("Accuracy per digit before and after the removal of a site")
plt.xticks(digits)
plt.xlabel("digit")
plt.ylabel("% right")
plt.ylim(0, 118)
plt.legend(ncols=2, loc="upper left")
plt.show()

# %% [markdown]
# ## In a federation
#
# A federation's server keeps every upload in one database and does all of this
# with two commands. A signed record lists what was removed, and the site cannot
# send it again:
#
# ```console
# $ fedran federation status hospital       # what all other sites say
# $ fedran federation forget hospital site-3
# ```
#
# [Remove a site's data](../how-to/operate.md#remove-a-sites-data) · Sites that
# lie (`results/attacks.md`)
