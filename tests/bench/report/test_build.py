"""From a folder of results to files, and the command ``fedran report``."""

import pytest

from fedran.bench.report.build import load_results, make_report
from fedran.cli.main import run
from helpers.made_up import METHODS, made_up, write

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")


def test_the_same_results_give_the_same_bytes(tmp_path):
    runs = write(tmp_path / "in", [made_up(**m, seed=s) for m in METHODS[:4] for s in (1, 2)])
    first, second = (
        make_report(load_results(runs)).write(tmp_path / name).parent for name in ("a", "b")
    )
    files = sorted(p.relative_to(first) for p in first.rglob("*.*"))
    for path in files:
        assert (first / path).read_bytes() == (second / path).read_bytes()
    kinds = [path.suffix for path in files]
    assert kinds.count(".png") == kinds.count(".svg") > 0


def test_results_in_subfolders_are_found(tmp_path):
    write(tmp_path / "a" / "b", [made_up(seed=1)], "x.jsonl")
    write(tmp_path, [made_up(seed=2)], "y.jsonl")
    assert len(load_results(tmp_path)) == 2


def test_the_papers_datasets_come_first_and_larger_uploads_before_smaller(tmp_path):
    runs = [
        made_up(dataset="digits"),
        made_up(dataset="vtab50-x"),
        made_up(dataset="cifar100-x", clients=100),
        made_up("afl", dataset="cifar100-x"),
        made_up(dataset="cifar100-x", upload=10, params={"rank": 1}),
        made_up(dataset="cifar100-x", upload=20, params={"rank": 2}),
    ]
    found = load_results(write(tmp_path, runs))
    assert [runs.index(r) for r in found] == [5, 4, 3, 2, 1, 0]


def test_the_first_figure_is_accuracy_against_bytes(full_report):
    assert next(iter(full_report.figures)).startswith("bytes-cifar100")
    assert next(iter(full_report.pages)) == "index.html"
    first, second = full_report.pages["index.html"].split("<svg")[1:]
    assert "accuracy after the last task" in first
    assert "accuracy after the last task" in second, "the drawing for narrow windows"


def one_line_error(capsys, *arguments):
    assert run(["report", *map(str, arguments)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "Traceback" not in error
    return error


def test_a_folder_without_results_is_refused_in_one_sentence(tmp_path, capsys):
    assert "no such folder" in one_line_error(capsys, tmp_path / "no")
    assert "no results" in one_line_error(capsys, tmp_path)
    write(tmp_path, [made_up()], "ok.jsonl")
    assert f"expected a folder of results; try {tmp_path}\n" in one_line_error(
        capsys, tmp_path / "ok.jsonl"
    )


@pytest.mark.parametrize("line", ["{", "[]", "{}", "incomplete"])
def test_a_broken_line_is_refused_in_one_sentence(tmp_path, capsys, line):
    write(tmp_path, [made_up()], "ok.jsonl")
    if line == "incomplete":
        line = made_up().to_json().replace('"acc": [[', '"acc": [[0.5], [')
    (tmp_path / "z.jsonl").write_text(line + "\n")
    one_line_error(capsys, tmp_path)


def test_the_command_says_what_it_wrote(tmp_path, capsys):
    write(tmp_path / "in", [made_up(seed=s) for s in (1, 2)])
    assert run(["report", str(tmp_path / "in"), "--out", str(tmp_path / "out")]) == 0
    output = capsys.readouterr().out
    assert str(tmp_path / "out" / "index.html") in output.replace("\n", "")
    assert "2 pages, 1 figure as SVG and PNG" in output
    page = (tmp_path / "out" / "index.html").read_text()
    assert "<h1>accuracy: accuracy and bytes of 1 method</h1>" in page, (
        "the name of the configuration"
    )
    assert (tmp_path / "out" / "cifar100.html").is_file()
