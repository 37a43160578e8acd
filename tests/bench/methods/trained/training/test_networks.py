"""The networks: their sizes, their initial weights, and ResNet-18 against another one."""

import math

import pytest
import torch

from fedran_bench.methods.registry import make_method
from fedran_bench.methods.trained.networks import (
    build,
    initialise,
)
from fedran_bench.methods.trained.weights import (
    copy_weights,
    load_weights,
)

MIB = 2**20


@pytest.mark.parametrize(
    ("name", "classes", "parameters"),
    [
        ("resnet18", 100, 11_220_132),
        ("resnet18-7x7", 200, 11_279_112),
        ("resnet18-7x7", 50, 11_202_162),
    ],
)
def test_resnet18_has_the_size_that_the_paper_counts(name, classes, parameters):
    with torch.device("meta"):
        network = build(name, 0)
        network.head.resize(classes)
    assert sum(p.numel() for p in network.parameters()) == parameters
    buffers = dict(network.named_buffers())
    counters = [n for n in buffers if n.endswith("num_batches_tracked")]
    assert sum(b.numel() for n, b in buffers.items() if n not in counters) == 9_600
    assert len(counters) == 20


@pytest.mark.parametrize(
    ("network", "classes", "mib"),
    [("resnet18", 100, 4283.818), ("resnet18-7x7", 200, 4306.317), ("resnet18-7x7", 50, 4276.963)],
)
@pytest.mark.parametrize("key", ["finetune", "fedlwf", "fedewc", "fedicarl", "target"])
def test_the_formula_of_a_network_is_the_papers(key, network, classes, mib):
    method = make_method(key, {"network": network, "n_rounds": 100})
    assert round(method.formula(3, classes) / MIB, 3) == mib


NAMES = {"convolution": "0", "normalization": "1"}


def in_their_names(state):
    """Weights of transformers' ResNet under the names of common weight files."""
    ours = {}
    for name, tensor in state.items():
        parts = name.split(".")
        if parts[0] == "embedder":
            part = {"convolution": "conv1", "normalization": "bn1"}[parts[2]]
            ours[".".join([part, parts[3]])] = tensor
            continue
        place = f"layer{int(parts[2]) + 1}.{parts[4]}"
        if parts[5] == "shortcut":
            part = f"downsample.{NAMES[parts[6]]}"
        else:
            kind = {"convolution": "conv", "normalization": "bn"}[parts[7]]
            part = f"{kind}{int(parts[6]) + 1}"
        ours[f"{place}.{part}.{parts[-1]}"] = tensor
    return ours


@pytest.mark.parametrize("training", [False, True])
def test_resnet18_computes_what_another_implementation_does(training):
    transformers = pytest.importorskip("transformers")
    config = transformers.ResNetConfig(
        embedding_size=64,
        hidden_sizes=[64, 128, 256, 512],
        depths=[2, 2, 2, 2],
        layer_type="basic",
    )
    random = torch.Generator().manual_seed(5)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        theirs = transformers.ResNetModel(config)
    with torch.no_grad():
        for name, tensor in theirs.state_dict().items():
            if "normalization" in name and tensor.is_floating_point():
                tensor.copy_(0.5 + torch.rand(tensor.shape, generator=random))
    body = build("resnet18-7x7", 0).body
    body.load_state_dict(in_their_names(theirs.state_dict()), strict=True)
    x = torch.randn((2, 3, 48, 64), generator=random)
    with torch.no_grad():
        expected = theirs.train(training)(x).pooler_output.flatten(1)
        found = body.train(training)(x)
    assert found.shape == (2, 512)
    assert float(expected.abs().max()) > 0.1
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "size", "stage"), [("resnet18", 16, 16), ("resnet18-7x7", 64, 16)]
)
def test_the_stem_of_resnet18_keeps_or_quarters_the_size(name, size, stage):
    seen = []
    network = build(name, 0).eval()
    network.body.layer1.register_forward_hook(lambda *a: seen.append(a[2].shape))
    network.body.layer4.register_forward_hook(lambda *a: seen.append(a[2].shape))
    with torch.no_grad():
        network.body(torch.zeros(1, 3, size, size))
    assert [tuple(s) for s in seen] == [(1, 64, stage, stage), (1, 512, stage // 8, stage // 8)]


def test_initial_weights_follow_hes_rule_and_the_seed():
    network = build("resnet18", 0)
    initialise(network, 3)
    first = copy_weights(network)
    for name, module in network.named_modules():
        if isinstance(module, torch.nn.Conv2d):
            spread = math.sqrt(2 / (module.out_channels * module.kernel_size[0] ** 2))
            assert float(module.weight.detach().std()) == pytest.approx(spread, rel=0.1), name
            assert abs(float(module.weight.detach().mean())) < 0.1 * spread
        elif isinstance(module, torch.nn.BatchNorm2d):
            assert bool((module.weight == 1).all())
            assert not module.bias.any()
            assert not module.running_mean.any()
            assert bool((module.running_var == 1).all())
    load_weights({n: t + 1 for n, t in first.items()}, network)
    initialise(network, 3)
    assert all(torch.equal(t, first[n]) for n, t in copy_weights(network).items())
    initialise(network, 4)
    assert not torch.equal(copy_weights(network)["body.conv1.weight"], first["body.conv1.weight"])
