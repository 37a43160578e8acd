"""Methods by name: what is accepted, and what an error says."""

import pytest

from fedran_bench.methods.registry import METHODS, make_method, settings

ON_THE_CPU_ONLY = {"afl", "afl-ridge-kept", "fedcof", "fedncm", "fedran-dp"}


@pytest.mark.parametrize(
    ("key", "meant"), [("fedrun", "fedran"), ("stsae", "stsa-e"), ("send-image", "send-images")]
)
def test_an_unknown_key_names_the_nearest(key, meant):
    with pytest.raises(ValueError, match=f"no method '{key}' .did you mean '{meant}'"):
        make_method(key)


@pytest.mark.parametrize(
    ("key", "name", "meant"),
    [("fedran", "ranks", "rank"), ("stsa-e", "dummy", "dummies"), ("fedcof", "gama", "gamma")],
)
def test_an_unknown_setting_names_the_nearest_and_lists_all(key, name, meant):
    with pytest.raises(ValueError, match=f"no setting '{name}' .did you mean '{meant}'.*it has"):
        make_method(key, {name: 1})


@pytest.mark.parametrize(
    ("key", "name", "value", "expected"),
    [
        ("fedran", "rank", "64", "must be an integer, got '64'"),
        ("fedran", "rank", 64.0, "must be an integer, got 64.0"),
        ("fedran", "bits", True, "must be a number, got True"),
        ("fedran", "lam", "auto", "must be a number or none, got 'auto'"),
        ("fedran-margin", "refit", 1, "must be true or false, got 1"),
        ("stsa-e", "dummies", [50], r"must be an integer, got \[50\]"),
        ("exact", "features", "tanh", "must be one of random, linear, raw, got 'tanh'"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_with_what_was_expected(key, name, value, expected):
    with pytest.raises(ValueError, match=f"^{key}.{name} {expected}$"):
        make_method(key, {name: value})


@pytest.mark.parametrize("key", METHODS)
def test_defaults_fit_their_own_types(key):
    method = make_method(key)
    assert make_method(key, method.params()) == method
    assert set(method.params()) == set(settings(key)) - {"execution"}  # how, not what


@pytest.mark.parametrize("key", METHODS)
def test_a_device_goes_only_to_methods_that_compute_there(key):
    method = make_method(key, device="cpu")
    assert method.device == (None if key in ON_THE_CPU_ONLY else "cpu")
    assert "device" not in method.params()
    assert make_method(key).device is None


@pytest.mark.parametrize(
    ("key", "name", "value", "expected"),
    [
        ("fedran", "rank", 0, "rank must be at least 1, got 0"),
        ("stsa", "lam", float("nan"), "lam must be positive and finite, got nan"),
        ("afl", "gamma", -1.0, "gamma must be positive and finite, got -1.0"),
        ("fedran", "bits", 15, "bits must be from 2 to 14, got 15.0"),
        ("fedran", "precision", "float23", "precision must be one of .* .did you mean 'float"),
        ("fedran-prototype", "tau", 2.0, "tau must be from -1 to 1, got 2.0"),
        ("fedran-margin", "margin", float("nan"), "margin must be at least 0, got nan"),
        ("fedcof", "gamma", float("inf"), "gamma must be positive and finite, got inf"),
    ],
)
def test_a_table_and_direct_construction_refuse_the_same_values(key, name, value, expected):
    with pytest.raises(ValueError, match=f"^{key}.{expected}"):
        make_method(key, {name: value})
    with pytest.raises(ValueError, match=f"^{expected}"):
        METHODS[key](**{name: value})
