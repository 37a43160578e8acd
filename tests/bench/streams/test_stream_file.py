"""Stream files: saved streams come back, altered or invented files are refused in one sentence."""

import json

import numpy as np
import pytest

from fedran_bench.streams.stream import make_stream
from fedran_bench.streams.stream_file import load_stream, save_stream

LABELS = np.repeat(np.arange(6), [9, 14, 5, 20, 7, 11])
KINDS = {
    "dirichlet": {"n_clients": 3, "beta": 0.2},
    "capped": {"n_clients": 3, "beta": 0.5, "partitioner": "capped"},
    "iid": {"n_clients": 4, "partitioner": "iid"},
    "natural": {"partitioner": "natural", "groups": np.arange(len(LABELS)) % 5},
    "masked": {"n_clients": 3, "beta": 1.0, "label_rate": 0.3, "mask_seed": 4},
    "empty clients": {"n_clients": 30, "beta": 0.05, "label_rate": 0.5},
}


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "s.json"
    save_stream(make_stream(LABELS, n_tasks=2, seed=3, **KINDS["masked"]), path)
    return path


def altered(path, change):
    fields = json.loads(path.read_text())
    change(fields)
    path.write_text(json.dumps(fields))
    return path


def sentence(path, **more):
    """The refusal: one line that names the file."""
    with pytest.raises(ValueError) as refusal:
        load_stream(path, **more)
    text = str(refusal.value)
    assert "\n" not in text
    assert text.startswith(f"{path}: not a usable stream file: ")
    assert len(text) < 1000
    return text


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("labels", [LABELS, np.array(list("abcäe\u2028"))[LABELS]])
def test_saved_streams_come_back_unchanged(kind, labels, tmp_path):
    stream = make_stream(labels, n_tasks=2, seed=3, **KINDS[kind])
    save_stream(stream, tmp_path / "s.json")
    again = load_stream(tmp_path / "s.json", labels=labels)
    assert again.hash == stream.hash
    assert again.seeds == stream.seeds
    assert again.settings == stream.settings
    for a, b in zip(again.tasks, stream.tasks, strict=True):
        assert a.classes == b.classes
        assert all(np.array_equal(x, y) for x, y in zip(a.rows, b.rows, strict=True))
        assert all(r.dtype == np.int64 for r in a.rows)
        assert len(a.labelled) == len(b.labelled)
        for k in range(len(a.rows)):
            assert np.array_equal(a.has_label(k), b.has_label(k))


@pytest.mark.parametrize("rate", [0.1, 1.0])
def test_a_stream_file_of_fifty_thousand_rows_is_below_a_megabyte(rate, tmp_path):
    labels = np.repeat(np.arange(100), 500)
    stream = make_stream(labels, n_tasks=5, n_clients=5, beta=0.1, seed=1, label_rate=rate)
    save_stream(stream, tmp_path / "s.json")
    assert (tmp_path / "s.json").stat().st_size < 1e6
    assert load_stream(tmp_path / "s.json", labels).hash == stream.hash


def test_saving_a_loaded_stream_writes_the_same_bytes(saved, tmp_path):
    save_stream(load_stream(saved), tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == saved.read_bytes()


def swap_rows(fields):
    rows = fields["tasks"][0]["rows"]
    k = max(range(len(rows)), key=lambda i: len(rows[i]))
    rows[k] = rows[k][::-1]


def show_a_label(fields):
    hidden = fields["tasks"][0]["unlabelled"]
    k = max(range(len(hidden)), key=lambda i: len(hidden[i]))
    hidden[k] = hidden[k][1:]


@pytest.mark.parametrize(
    "change",
    [
        swap_rows,
        show_a_label,
        lambda f: f["tasks"][0]["classes"].reverse(),
        lambda f: f["tasks"].reverse(),
        lambda f: f["tasks"].pop(),
        lambda f: f["tasks"][0].update(unlabelled=[]),
        lambda f: f.update(hash="0" * 64),
    ],
)
def test_an_altered_stream_file_is_refused(change, saved):
    assert "hash: expected" in sentence(altered(saved, change))
    assert sentence(saved).endswith("the file was altered")


def first_client(fields, rows):
    fields["tasks"][0]["rows"][0] = rows


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda f: f.update(format="other"), "format: expected fedran stream 1, got other"),
        (lambda f: f.update(version=2), "expected fedran stream 1"),
        (lambda f: f.pop("hash"), "hash: expected a value, got none"),
        (lambda f: f.pop("tasks"), "tasks: expected a value, got none"),
        (lambda f: f.update(tasks={}), "tasks: expected a list"),
        (lambda f: f.update(tasks=[]), "tasks: expected at least one"),
        (lambda f: f.update(tasks=[5]), "task: expected an object, got 5"),
        (lambda f: f["made"].update(seeds=[1]), "made_hash: expected"),
        (lambda f: f.update(made="x"), "made: expected an object"),
        (lambda f: f["tasks"][0].update(rows=3), "rows: expected a list"),
        (lambda f: f["tasks"][0]["rows"].pop(), "unlabelled: expected"),
        (lambda f: f["tasks"][0].update(classes=[1.5]), "classes: expected an integer"),
        (lambda f: f["tasks"][0].update(classes=[True]), "classes: expected an integer"),
        (lambda f: f["tasks"][0].update(classes=[3, 3]), "distinct labels"),
        (lambda f: f["tasks"][1].update(classes=f["tasks"][0]["classes"]), "a class twice"),
        (lambda f: first_client(f, ["1"]), "rows: expected a list of row numbers"),
        (lambda f: first_client(f, [1.0]), "rows: expected a list of row numbers"),
        (lambda f: first_client(f, [True]), "rows: expected a list of row numbers"),
        (lambda f: first_client(f, "12"), "rows: expected a list of row numbers"),
        (lambda f: first_client(f, [-1]), "rows: expected numbers of at least 0, got -1 .. -1"),
        (lambda f: first_client(f, f["tasks"][0]["rows"][1]), "every row at most once"),
        (
            lambda f: f["tasks"][0].update(unlabelled=[[99], [], []]),
            "unlabelled: expected numbers of at least 0 and below ",
        ),
        (lambda f: f["tasks"][0].update(unlabelled=[[], []]), "one list for each of 3 clients"),
    ],
)
def test_malformed_stream_files_are_refused(change, words, saved):
    assert words in sentence(altered(saved, change))


def test_tasks_with_different_clients_are_refused(saved):
    def change(fields):
        fields["tasks"][1]["rows"].append([])
        fields["tasks"][1]["unlabelled"].append([])

    assert "all with the same clients" in sentence(altered(saved, change))


def test_a_stream_of_another_dataset_is_refused(saved):
    assert load_stream(saved, labels=LABELS).n_clients == 3
    text = sentence(saved, labels=LABELS[:-1])
    assert "rows: expected numbers below 65, got " in text
    assert text.endswith("made for another dataset")


def test_refusals_of_streams_show_plain_numbers(saved):
    assert "np.int64" not in sentence(saved, labels=LABELS[:-1])


@pytest.mark.parametrize(
    ("old", "new"),
    [('"rows":[[', '"rows":[[99999999999999999999,'), ('"order":3', '"order":1e999')],
)
def test_numbers_beyond_64_bits_are_refused_in_one_sentence(old, new, saved):
    text = saved.read_text()
    assert old in text
    saved.write_text(text.replace(old, new, 1))
    sentence(saved)


@pytest.mark.parametrize(
    "change",
    [
        lambda f: f["made"]["seeds"].update(order=99),
        lambda f: f["made"]["seeds"].update(order=3.7),
        lambda f: f["made"]["settings"].update(beta=0.1),
        lambda f: f["made"]["settings"].update(label_rate={"x": []}),
    ],
)
def test_altered_seeds_and_settings_are_refused(change, saved):
    sentence(altered(saved, change))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no json",
        "[]",
        "null",
        "{}",
        '{"format": NaN}',
        "[" * 100_000,
        '{"a":' * 100_000,
        '{"format": "fedran stream", "version": 1, "tasks": ' + "[" * 500 + "]" * 500 + "}",
        '{"format": 1e999}',
        '{"version": ' + "9" * 5000 + "}",
    ],
)
def test_files_that_are_not_streams_are_refused_in_one_sentence(text, tmp_path):
    path = tmp_path / "s.json"
    path.write_text(text)
    sentence(path)


def test_binary_files_are_refused_as_streams_in_one_sentence(tmp_path):
    path = tmp_path / "s.json"
    path.write_bytes(b"\xff\xfe\x00")
    sentence(path)


def test_a_missing_stream_file_or_folder_is_named(saved, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere\.json"):
        load_stream(tmp_path / "nowhere.json")
    with pytest.raises(FileNotFoundError, match="does not exist"):
        save_stream(load_stream(saved), tmp_path / "no" / "s.json")
