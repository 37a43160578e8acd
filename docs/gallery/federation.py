"""A federation on one machine

A server and two sites run as real processes with keys and TLS. The sites learn
ten digits in two tasks. Afterwards one site is removed from the classifier. The
commands are those of a federation on many machines.
"""

# %% [markdown]
# ## Set up
#
# This needs Flower: `pip install -e '.[flower]'` in a clone of the repository.
# You would type the commands into a terminal. Here a small function runs them,
# so that the page can show what they print.

# %%
import shlex
import subprocess


def shell(command, lines=None):
    """Run a command and print what it says, at most so many lines of it."""
    done = subprocess.run(
        shlex.split(command), stdout=subprocess.PIPE, text=True, check=True
    )
    said = done.stdout.strip().splitlines()
    print(
        "\n".join([f"$ {command}", *said[:lines]])
        + "\n...\n" * (lines is not None)
    )


shell("fedran federation init trial")

# %% [markdown]
# `init` made the folder `trial` with a certificate, keys and settings of a
# server and two sites, and gave the sites handwritten digits as sample data:
# digits 0 to 4 for `task-1` and digits 5 to 9 for `task-2`. `up` starts all
# three in the background.

# %%
shell("fedran federation up trial")

# %% [markdown]
# ## Two tasks
#
# In a task the server asks every site for one message, checks the answers,
# solves for a classifier and sends it to the sites.

# %%
shell("fedran federation task trial task-1")
shell("fedran federation task trial task-2")

# %% [markdown]
# Each site now has a classifier for all ten digits and uses it without the
# server:

# %%
import numpy as np

head = "trial/sites/site-1/state/head.fedran"
shell(f"fedran predict {head} trial/server/validation.npz --out answers")
truth = np.load("trial/server/validation.npz")["labels"]
right = np.mean(np.loadtxt("answers", dtype=str) == truth.astype(str))
print(f"{100 * right:.1f} % of {len(truth)} test rows are right")

# %% [markdown]
# ## What left a site?
#
# Every upload is kept at the site that made it. This is the one of `site-1` for
# the first task:

# %%
shell(
    "fedran inspect trial/sites/site-1/state/outbox/task-1.envelope", lines=26
)

# %% [markdown]
# ## Who contributes what?
#
# `status` shows tasks, sites and bytes. With `--web` it is a page in the
# browser.

# %%
shell("fedran federation status trial")

# %% [markdown]
# ## Remove a site
#
# `forget` deletes the uploads of a site and solves the classifier again from
# the others. At a terminal it asks first; scripts agree with `--yes`.

# %%
shell("fedran federation forget trial site-2 --yes")

# %%
import json

import matplotlib.pyplot as plt

report = subprocess.run(
    ["fedran", "federation", "status", "trial", "--json"],
    capture_output=True,
    check=True,
)
history = json.loads(report.stdout)["history"]
names = [
    "after task-1\n(digits 0 to 4)",
    "after task-2\n(all digits)",
    "without site-2\n(all digits)",
]
for name, head in zip(names, history, strict=True):
    accuracy = 100 * head["accuracy"]
    plt.bar(name, accuracy, width=0.5, color="#d9480f")
    plt.text(
        name,
        accuracy + 1,
        f"{accuracy:.1f} %\n{head['bytes'] / 1024:.0f} KiB",
        ha="center",
    )
plt.title("The classifiers of the federation: accuracy and size")
plt.ylabel("% of the server's test rows")
plt.ylim(0, 120)
plt.show()

# %%
shell("fedran federation down trial")

# %% [markdown]
# ## On many machines
#
# Each site runs `join` and gives its public keys to the owner of the server,
# who runs `add`: [Run a federation](../how-to/federation.md). The [guarantees
# and limits](../explanation/federation.md) say what happens when something
# fails.
