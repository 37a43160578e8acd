"""A ViT of a few hundred random weights in a file, for images of 8 x 8 pixels."""

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path

WIDTH, DEPTH = 16, 2


@cache
def tiny_vit(seed=2):
    """The path of the file, the same in the whole process. Needs PyTorch."""
    import torch
    from safetensors.torch import save_file

    from fedran.backbones.vit import Sizes, ViT

    folder = Path(tempfile.mkdtemp(prefix="tiny-vit-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = ViT(Sizes(WIDTH, DEPTH, heads=2, patch=4, grid=2, hidden=32))
        tensors = {
            name: tensor + 0.3 * torch.randn_like(tensor)
            for name, tensor in network.state_dict().items()
        }
    path = folder / "vit.safetensors"
    save_file(tensors, path, {"num_heads": "2"})
    return str(path)
