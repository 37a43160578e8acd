"""``--set key=value``: what it changes, and which mistakes it names."""

import re

import pytest

from helpers.bench.small_sweep import TWO_METHODS


@pytest.mark.parametrize(
    ("override", "check"),
    [
        ("stream.beta=0.5", lambda e: e.streams[0]["beta"] == 0.5),
        (" stream.beta = 0.5 ", lambda e: e.streams[0]["beta"] == 0.5),
        ("stream.beta=[0.5, 1]", lambda e: [s["beta"] for s in e.streams] == [0.5, 1]),
        ("stream.partitioner=iid", lambda e: e.streams[0]["partitioner"] == "iid"),
        ('stream.partitioner="iid"', lambda e: e.streams[0]["partitioner"] == "iid"),
        ("dataset=har-dsa19", lambda e: e.datasets == ("har-dsa19",)),
        ("name=a name = b", lambda e: e.name == "a name = b"),
        ("stream.seed=1_000", lambda e: e.streams[0]["seed"] == 1000),
        ("method.rank=64", lambda e: [m.params.get("rank") for m in e.methods] == [64, None]),
        (
            "method.rank=[64,128]",
            lambda e: [m.params.get("rank") for m in e.methods][:2] == [64, 128],
        ),
        ("methods=fedncm", lambda e: [m.key for m in e.methods] == ["fedncm"]),
        ("methods= fedncm , fedran", lambda e: [m.key for m in e.methods] == ["fedran", "fedncm"]),
    ],
)
def test_an_override_changes_one_setting(override, check, two_methods):
    assert check(two_methods(TWO_METHODS, override))


def test_kept_methods_keep_their_settings_and_later_overrides_reach_them(two_methods):
    (kept,) = two_methods(TWO_METHODS, "methods=fedran", "method.out_features=64").methods
    assert (kept.key, dict(kept.params)) == ("fedran", {"rank": 8, "out_features": 64})


def test_the_experiment_says_what_was_changed(two_methods):
    changes = "dataset=har-dsa19", " stream.beta = 0.5"
    experiment = two_methods(TWO_METHODS, *changes)
    file = experiment.source
    assert experiment.name == f"{file.removesuffix('.toml')} (dataset=har-dsa19; stream.beta = 0.5)"
    assert experiment.arguments == (file, "--set", changes[0], "--set", changes[1])
    assert two_methods(TWO_METHODS, *changes, "name=mine").name == "mine"
    unchanged = two_methods(TWO_METHODS)
    assert (unchanged.name, unchanged.arguments) == (file.removesuffix(".toml"), (file,))


def test_settings_of_a_stage_reach_every_method_that_has_one(two_methods):
    with_stage = TWO_METHODS + "[method.task0]\nlr = 0.5\n"
    found = two_methods(with_stage, "method.task0.lr=[0.1, 0.2]", "method.task0.epochs=3").methods
    assert [m.params.get("task0") for m in found][-2:] == [
        {"lr": 0.1, "epochs": 3},
        {"lr": 0.2, "epochs": 3},
    ]
    assert "task0" not in found[0].params


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("stream.beta", "--set expects key=value, got 'stream.beta'"),
        ("=3", "--set expects key=value"),
        ("", "--set expects key=value"),
        ("\x1b[31m", "--set expects key=value, got '\\\\x1b[31m'"),
        ("stream.seed=1993,7", "stream.seed must be an integer, got '1993,7'"),
        ("sream.beta=1", "no such setting here (did you mean 'stream.beta'?)"),
        ("dataset.x=1", "--set dataset.x: there is no such setting here"),
        ("methods=fedrun", "no method 'fedrun' (did you mean 'fedran'?)"),
        ("methods=fedran,afl", "no method 'afl'; it lists fedran, fedncm"),
        ("methods=", "--set methods: the file lists no method ''; it lists fedran, fedncm"),
        ("method.task0.lr=3", "--set method.task0.lr: there is no such setting here"),
        ("method.rank.lr=3", "no such setting here (did you mean 'method.rank'?)"),
        ("method.rnk=3", "no such setting here (did you mean 'method.rank'?)"),
        ("rank=3", "--set rank: there is no such setting here (did you mean 'method.rank'?)"),
    ],
)
def test_a_wrong_override_is_refused_with_the_closest_setting(override, words, two_methods):
    with pytest.raises(ValueError, match=re.escape(words)) as refusal:
        two_methods(TWO_METHODS, override)
    assert "\n" not in str(refusal.value)
