"""The figures that are copied from the paper are complete and consistent."""

from dataclasses import replace

import pytest

from fedran_bench.report.paper import paper_figures, printed_for
from fedran_bench.results.grouping import Setting

RESNET, VIT = paper_figures()["resnet18"], paper_figures()["vit"]
SETTING = Setting("cifar100-efficientnet_lite0", 5, 5, "dirichlet", 1.0, 0.1)


def test_the_papers_accuracy_tables_are_complete():
    assert all(
        set(row) == {"CIFAR-100", "ImageNet-R", "VTAB"} for row in RESNET["accuracy"].values()
    )
    assert all(set(row) == {"CIFAR-100", "ImageNet-R"} for row in VIT["accuracy"].values())


def test_the_printed_bytes_follow_from_8_bytes_per_number_and_all_classes():
    for name, (rank, classes) in {"CIFAR-100": (2048, 100), "VTAB": (512, 50)}.items():
        size = (8192 * rank + rank + 8192 * classes) * 8 / 2**20
        assert round(size, 2) == RESNET["mib"]["FedRAN"][name]


def test_a_setting_finds_the_table_with_its_backbone():
    assert printed_for(SETTING).accuracy("fedran-paper") == (76.54, 67.33)
    assert printed_for(SETTING).cost("mib", "stsa-e") == 194.59
    vit = printed_for(replace(SETTING, dataset="cifar100-vit", tasks=10, beta=0.5))
    assert (vit.backbone, vit.accuracy("fedran-paper")) == ("ViT-B/16", (93.91, 89.90))
    assert vit.cost("seconds", "fedran-paper") is None
    assert printed_for(replace(SETTING, beta=0.3)).accuracy("fedran-paper") is None
    assert printed_for(SETTING).accuracy("fedncm") is None


@pytest.mark.parametrize(
    "other",
    [
        *({"clients": 100}, {"tasks": 7}, {"label_rate": 0.1}),
        *({"partitioner": "iid"}, {"dataset": "digits"}),
    ],
)
def test_other_settings_have_no_printed_figures(other):
    assert printed_for(replace(SETTING, **other)) is None
