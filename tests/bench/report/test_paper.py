"""The figures that are copied from the paper are complete and consistent."""

from dataclasses import replace

from fedran.bench.report.paper import (
    COMMUNICATION,
    RESNET,
    RUNTIME,
    SPEEDUP_MEAN,
    VIT,
    paper_row,
    printed_for,
)
from fedran.bench.results.grouping import Setting, groups
from helpers.made_up_trained import heads, scratch


def test_the_papers_accuracy_tables_are_complete():
    assert all(set(row) == {"CIFAR-100", "ImageNet-R", "VTAB"} for row in RESNET.values())
    assert all(set(row) == {"CIFAR-100", "ImageNet-R"} for row in VIT.values())


def test_the_printed_bytes_follow_from_8_bytes_per_number_and_all_classes():
    for name, (rank, classes) in {"CIFAR-100": (2048, 100), "VTAB": (512, 50)}.items():
        size = (8192 * rank + rank + 8192 * classes) * 8 / 2**20
        assert round(size, 2) == COMMUNICATION["FedRAN"][name]


def test_the_printed_mean_speed_up_follows_from_the_printed_seconds():
    trained = [row for name, row in RUNTIME.items() if name not in {"STSA", "FedRAN"}]
    for name, speedup in SPEEDUP_MEAN.items():
        mean = sum(row[name] for row in trained) / len(trained)
        assert round(mean / RUNTIME["FedRAN"][name], 1) == speedup


def test_a_setting_finds_the_table_with_its_backbone():
    usual = {"clients": 5, "partitioner": "dirichlet", "label_rate": 1.0}
    vit = Setting("cifar100-vit", 10, **usual)
    assert printed_for(vit).pair("FedRAN", 0.5) == (93.91, 89.90)
    assert printed_for(vit).seconds("FedRAN") is None
    assert printed_for(Setting("imagenet-r-vit", 10, **usual)).backbone == "ViT-B/16"
    small = Setting("cifar100-efficientnet_lite0", 5, **usual)
    assert printed_for(small).pair("FedRAN", 0.1) == (76.54, 67.33)
    others = ({"clients": 100}, {"tasks": 7}, {"label_rate": 0.1}, {"partitioner": "iid"})
    for other in (*others, {"dataset": "digits"}):
        assert printed_for(replace(small, **other)) is None


def test_networks_have_a_row_in_the_paper_and_heads_have_none():
    assert {paper_row(g) for g in groups(heads())} == {None}
    assert "FedEWC" in {paper_row(g) for g in groups(scratch())}
