"""Files: crash-safe, verified, named in errors; aggregators that go on bit for bit."""

import contextlib
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

import fedran
from fedran.wire import files
from helpers.wire_messages import Message, solved_head, summary, tampered

FORMS = {
    "stack": {},
    "gram": {},
    "float64": {"dtype": "float64"},
    "flat": {"server_rank": 4},
    "paper": {"server_rank": 4, "order": "paper"},
}


def upload(seed: int, precision: str = "mixed", **options) -> fedran.Summary:
    return fedran.decode(fedran.encode(summary(n=20, M=32, seed=seed, **options), precision))


def half_done(form: str) -> fedran.Aggregator:
    """A server after some uploads: two tasks, a task left open, decoded and local summaries."""
    agg = fedran.Aggregator(32, **FORMS[form])
    for i in range(2 if form == "stack" else 5):
        s = upload(i) if i % 2 else summary(n=20, M=32, seed=i, labels=(i, "ant"))
        agg.absorb(s, client=f"c{i}", task=f"t{i // 3}")
    return agg


def go_on(agg: fedran.Aggregator) -> tuple[bytes, bytes]:
    """Weights and state after a late upload, one for the open task and a new task."""
    for client, task in (("c8", "t0"), ("c9", "t1"), ("c9", "t2")):
        agg.absorb(upload(9, "float32", labels=("new", 3)), client=client, task=task)
    agg.close_task()
    return agg.solve().weights.tobytes(), fedran.encode(agg)


@pytest.mark.parametrize("form", FORMS)
class TestAggregators:
    def test_goes_on_bit_for_bit(self, form, tmp_path):
        agg = half_done(form)
        assert fedran.save(agg, tmp_path / "a") == (tmp_path / "a").stat().st_size
        loaded = fedran.load(tmp_path / "a")
        assert type(loaded) is fedran.Aggregator
        assert fedran.encode(loaded) == fedran.encode(agg)
        assert loaded.solve().weights.tobytes() == agg.solve().weights.tobytes()
        assert go_on(loaded) == go_on(agg)

    def test_saving_does_not_change_what_follows(self, form, tmp_path):
        saved, never_saved = half_done(form), half_done(form)
        fedran.save(saved, tmp_path / "a")
        assert go_on(saved) == go_on(never_saved)

    def test_everything_is_there(self, form, tmp_path):
        agg = half_done(form)
        fedran.save(agg, tmp_path / "a")
        loaded = fedran.load(tmp_path / "a")
        for name in ("out_features", "server_rank", "order", "dtype", "fingerprint", "classes"):
            assert getattr(loaded, name) == getattr(agg, name)
        for name in ("counts", "accounts", "ledger", "rank", "bounds"):
            assert getattr(loaded, name) == getattr(agg, name)
        assert not loaded.absorb(upload(1), client="c1", task="t0")

    def test_empty(self, form, tmp_path):
        agg = fedran.Aggregator(32, **FORMS[form])
        fedran.save(agg, tmp_path / "a")
        assert go_on(fedran.load(tmp_path / "a")) == go_on(agg)

    def test_damage_is_refused_by_name(self, form, tmp_path):
        blob = fedran.encode(half_done(form))
        path = tmp_path / "state"
        middle = len(blob) // 2
        for damaged in (blob[:middle], blob[:middle] + b"\0" + blob[middle + 1 :] + b"\0", b""):
            path.write_bytes(damaged)
            with pytest.raises(fedran.Refused, match="state"):
                fedran.load(path)


def test_a_state_as_bytes():
    agg = half_done("gram")
    assert fedran.encode(fedran.decode(fedran.encode(agg))) == fedran.encode(agg)


@pytest.mark.parametrize("form", ["stack", "float64", "flat", "paper"])
def test_uploads_that_decode_accepts_cannot_spoil_the_state(form, tmp_path):
    """Each within float32, their Gram not: refused, or the state stays finite and loadable."""
    agg = fedran.Aggregator(8, **FORMS[form])
    H = np.zeros((3, 8))
    H[:, 0] = 1.5e18
    for i in range(4):
        blob = fedran.encode(fedran.summarize(H, [i] * 3), "float32")
        try:
            agg.absorb(fedran.decode(blob), client=f"c{i}", task="t")
        except fedran.Refused:
            assert i > 0
    fedran.save(agg, tmp_path / "a")
    loaded = fedran.load(tmp_path / "a")
    head = fedran.decode(fedran.encode(loaded.solve()), fedran.Head)
    assert np.isfinite(head.weights).all()


@pytest.mark.parametrize("form", ["stack", "flat"])
@pytest.mark.parametrize(
    "claims",
    [
        {"n_rows": 2**63 - 1},
        {"eps_G": 1.7e308},
        {"eps_B": 1.7e308},
        {"energy": 1.7e308, "cut": 1.7e308},
    ],
    ids=lambda c: next(iter(c)),
)
def test_claims_that_add_up_beyond_their_range_cannot_spoil_the_state(form, claims, tmp_path):
    """Refused by decode or absorb, or the state can still be saved, loaded and solved."""
    blob = tampered(fedran.encode(summary()), lambda m: m.fields["accounts"].update(claims))
    agg = fedran.Aggregator(16, **FORMS[form])
    agg.absorb(summary(), client="honest", task="t")
    for task in ("t", "u"):
        with contextlib.suppress(fedran.Refused):
            agg.absorb(fedran.decode(blob), client="a", task=task)
    fedran.save(agg, tmp_path / "a")
    head = fedran.load(tmp_path / "a").solve()
    assert fedran.decode(fedran.encode(head), fedran.Head).classes == head.classes


STATE_DAMAGE = {
    "ledger row": ("ledger", [["a", "b"]], "ledger"),
    "ledger id": ("ledger", [["a b", "c", "d"]], "ledger"),
    "ledger digest": ("ledger", [["a", "c", 3]], "ledger"),
    "form": ("state.form", "cube", "state.form"),
    "width": ("state.width", 7, "stack"),
    "dtype": ("dtype", "float16", "dtype"),
    "other dtype": ("dtype", "float64", "stack"),
    "order": ("order", "random", "order"),
    "rank": ("server_rank", 0, "server_rank"),
    "kind": ("kind", "summary", "kind: expected aggregator, got summary"),
    "counts": ("counts", [1], "counts"),
    "accounts": ("accounts.energy", -1.0, "accounts.energy"),
}


@pytest.mark.parametrize("case", STATE_DAMAGE)
def test_altered_state_with_a_valid_checksum(case, tmp_path):
    path, value, named = STATE_DAMAGE[case]

    def change(message: Message) -> None:
        inner, last = message.section(path)
        inner[last] = value

    (tmp_path / "x").write_bytes(tampered(fedran.encode(half_done("stack")), change))
    with pytest.raises(fedran.Refused, match=named):
        fedran.load(tmp_path / "x", fedran.Aggregator)


RANKED_DAMAGE = {
    "past gone": (lambda m: m.tensors.pop("past"), "past"),
    "past flat": (lambda m: m.put("past", np.zeros(32)), "past"),
    "past NaN": (lambda m: m.put("past", np.full((32, 1), np.nan)), "past"),
    "extra": (lambda m: m.put("more", np.zeros(32), "F32"), "more"),
    "open task": (lambda m: m.fields["state"].update(open_task="a b"), "open_task"),
    "closed": (lambda m: m.fields["state"].update(closed=[3]), "closed"),
    "closed no list": (lambda m: m.fields["state"].update(closed="t0"), "closed"),
    "accounts": (lambda m: m.fields["state"].pop("past_accounts"), "past_accounts"),
}


@pytest.mark.parametrize("case", RANKED_DAMAGE)
def test_altered_ranked_state_with_a_valid_checksum(case, tmp_path):
    change, named = RANKED_DAMAGE[case]
    (tmp_path / "x").write_bytes(tampered(fedran.encode(half_done("flat")), change))
    with pytest.raises(fedran.Refused, match=named):
        fedran.load(tmp_path / "x")


@pytest.mark.parametrize("thing", [summary(), solved_head()], ids=["summary", "head"])
class TestSaveAndLoad:
    def test_round_trip(self, thing, tmp_path):
        size = fedran.save(thing, tmp_path / "a", "float32")
        blob = (tmp_path / "a").read_bytes()
        assert blob == fedran.encode(thing, "float32")
        assert size == len(blob)
        loaded = fedran.load(str(tmp_path / "a"))
        assert type(loaded) is type(thing)
        assert loaded.classes == thing.classes

    def test_options(self, thing, tmp_path):
        fedran.save(thing, tmp_path / "a", bits=8.0)
        assert (tmp_path / "a").read_bytes() == fedran.encode(thing, bits=8.0)

    def test_half_written_or_altered(self, thing, tmp_path):
        path = tmp_path / "upload.bin"
        blob = fedran.encode(thing)
        for damaged in (blob[: len(blob) // 2], blob[:-1] + bytes([blob[-1] ^ 1]), b""):
            path.write_bytes(damaged)
            with pytest.raises(fedran.Refused, match=r"upload\.bin"):
                fedran.load(path)


THINGS = {
    fedran.Summary: summary(),
    fedran.Head: solved_head(),
    fedran.Aggregator: half_done("gram"),
}


@pytest.mark.parametrize("kind", THINGS)
def test_decode_and_load_find_the_kind_themselves(kind, tmp_path):
    blob = fedran.encode(THINGS[kind])
    assert fedran.save(THINGS[kind], tmp_path / "a") == len(blob)
    assert (tmp_path / "a").read_bytes() == blob
    for found in (fedran.decode(blob), fedran.load(tmp_path / "a")):
        assert type(found) is kind
        assert found.classes == THINGS[kind].classes


@pytest.mark.parametrize("kind", THINGS)
def test_a_requested_kind_refuses_the_other_kinds(kind, tmp_path):
    for made, obj in THINGS.items():
        fedran.save(obj, tmp_path / "a")
        blob = fedran.encode(obj)
        if made is kind:
            assert type(fedran.decode(blob, kind)) is kind
            assert type(fedran.load(tmp_path / "a", kind)) is kind
            continue
        named = f"kind: expected {kind.__name__.lower()}, got {made.__name__.lower()}"
        with pytest.raises(fedran.Refused, match=named):
            fedran.decode(blob, kind)
        with pytest.raises(fedran.Refused, match=f"a: {named}"):
            fedran.load(tmp_path / "a", kind)


def test_decode_limits_an_aggregator_from_a_stranger_and_load_does_not(tmp_path):
    """A server's own state may hold more classes than one message."""
    agg = fedran.Aggregator(1)
    n = fedran.Limits().classes + 1
    agg.absorb(fedran.summarize(np.ones((n, 1)), list(range(n))), client="a", task="t")
    blob = fedran.encode(agg)
    fedran.save(agg, tmp_path / "a")
    with pytest.raises(fedran.Refused, match="classes"):
        fedran.decode(blob)
    with pytest.raises(fedran.Refused, match="classes"):
        fedran.load(tmp_path / "a", limits=fedran.Limits())
    for found in (fedran.decode(blob, fedran.Aggregator), fedran.load(tmp_path / "a")):
        assert len(found.classes) == n


@pytest.mark.parametrize("kind", [fedran.Summary, fedran.Head, None])
@pytest.mark.parametrize("limit", ["message", "header"])
def test_load_limits_summaries_and_heads_without_a_kind_too(kind, limit, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "DEFAULT_LIMITS", fedran.Limits(**{limit: 100}))
    fedran.save(THINGS[kind or fedran.Summary], tmp_path / "a")
    with pytest.raises(fedran.Refused, match=r"a: \w+: expected .*at most 100 bytes"):
        fedran.load(tmp_path / "a", kind)
    fedran.save(THINGS[fedran.Aggregator], tmp_path / "a")
    assert fedran.load(tmp_path / "a").classes == THINGS[fedran.Aggregator].classes


def test_large_files_are_refused_before_they_are_read(tmp_path, monkeypatch):
    fedran.save(summary(), tmp_path / "a")
    monkeypatch.setattr("pathlib.Path.read_bytes", lambda path: pytest.fail("was read"))
    with pytest.raises(fedran.Refused, match="at most 10 bytes"):
        fedran.load(tmp_path / "a", limits=fedran.Limits(message=10))


def test_missing_files_stay_ordinary_errors(tmp_path):
    with pytest.raises(FileNotFoundError):
        fedran.load(tmp_path / "absent")
    with pytest.raises(FileNotFoundError):
        fedran.save(summary(), tmp_path / "absent" / "a")


@pytest.mark.parametrize("call", ["replace", "fsync"])
@pytest.mark.parametrize("crash", [OSError("disk full"), KeyboardInterrupt()])
def test_a_crash_leaves_the_old_file_and_nothing_else(call, crash, tmp_path, monkeypatch):
    path = tmp_path / "state"
    fedran.save(half_done("stack"), path)
    old = path.read_bytes()

    def fail(*_):
        raise crash

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(type(crash)):
        fedran.save(half_done("gram"), path)
    monkeypatch.undo()
    assert path.read_bytes() == old
    assert os.listdir(tmp_path) == ["state"]


def test_bytes_are_synced_before_the_rename(tmp_path, monkeypatch):
    calls = []
    for name in ("fsync", "replace"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *a, n=name, r=real: (calls.append(n), r(*a))[1])
    fedran.save(summary(), tmp_path / "a")
    assert calls == ["fsync", "replace", "fsync"][: len(calls)]
    assert calls[:2] == ["fsync", "replace"]


@pytest.mark.parametrize("field", ["eps_G", "eps_G_fro", "eps_quant"])
def test_whatever_was_absorbed_can_be_saved_and_loaded(field, tmp_path):
    """Totals may exceed the ceilings of one message."""
    base = fedran.summarize(np.eye(8), list(range(8)), 8)
    agg = fedran.Aggregator(8)
    for i in range(3):
        accounts = replace(base.accounts, **{field: 9e99}, n_rows=2**40)
        agg.absorb(replace(base, accounts=accounts), client=f"c{i}", task="t")
    fedran.save(agg, tmp_path / "a")
    assert fedran.load(tmp_path / "a").accounts == agg.accounts


@pytest.mark.parametrize("server_rank", [None, 5])
def test_a_torch_aggregator_goes_on_after_a_load(server_rank, tmp_path):
    pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    agg = fedran.Aggregator(16, server_rank, device="cpu")
    for i in range(3):
        s = fedran.summarize(rng.random((30, 16)), rng.integers(0, 3, 30), 12)
        agg.absorb(s, client=f"c{i}", task="t")
    fedran.save(agg, tmp_path / "a")
    loaded = fedran.load(tmp_path / "a", device="cpu")
    first, second = agg.solve(), loaded.solve()
    assert second.diagnosis.residual == pytest.approx(first.diagnosis.residual, abs=1e-5)
    assert second.diagnosis.condition == pytest.approx(first.diagnosis.condition, rel=1e-4)
    np.testing.assert_allclose(second.to(None).weights, first.to(None).weights, atol=1e-5)
    on_numpy = fedran.load(tmp_path / "a").solve().weights
    np.testing.assert_allclose(on_numpy, first.to(None).weights, atol=1e-4)


def test_a_state_written_during_a_solve_is_the_state():
    rng = np.random.default_rng(0)
    agg = fedran.Aggregator(300)
    for i in range(4):
        agg.absorb(fedran.summarize(rng.random((90, 300)), [i] * 90, None), client="c", task=str(i))
    before = fedran.encode(agg)
    with ThreadPoolExecutor(3) as pool:
        solves = [pool.submit(agg.solve) for _ in range(20)]
        written = [pool.submit(fedran.encode, agg) for _ in range(20)]
        assert all(w.result() == before for w in written)
        weights = [s.result().weights for s in solves]
    for other in weights[1:]:
        np.testing.assert_allclose(other, weights[0], atol=1e-5 * np.abs(weights[0]).max())
