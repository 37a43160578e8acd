"""What a site tells the server when its work fails, and what it keeps to itself."""

import time

import numpy as np
import pytest

pytest.importorskip("flwr")

from fedran.core.errors import Refused
from fedran.federation.flower.records import make_record
from fedran.federation.site.failures import text_for_server, time_limit
from helpers.federation.site_app import answer_offer, asked, call

ENDS = {
    "raises": ("raise ValueError('secret')", "expected rows and labels, got ValueError"),
    "leaves": ("sys.exit('secret')", "expected rows and labels, got SystemExit"),
    "greedy": ("raise MemoryError", "expected rows and labels, got MemoryError"),
    "strange": ("return [[1, 2], [3]], [0, 1]", "ValueError at the site"),
}


def use_function(place, name, code):
    """Let the rows of a site come from a function."""
    (place.folder / f"{name}.py").write_text(f"import sys, time\ndef load(task):\n    {code}\n")
    text = place.file.read_text()
    place.file.write_text(text.replace('folder = "data"', f'entry = "{name}:load"'))


@pytest.mark.parametrize("name", ENDS)
def test_every_failure_of_the_work_is_reported_in_one_sentence(name, place):
    code, words = ENDS[name]
    use_function(place, f"rows_{name}", code)
    fields, blobs = call(answer_offer, asked())
    told = fields["told"]
    assert told.startswith("task may: ")
    assert (words in told, fields["failed"], blobs) == (True, True, {})
    assert not any(private in told for private in ("\n", "secret", str(place.folder)))
    log = (place.folder / "log" / "fedran.log").read_text()
    assert ("secret" in log) == ("secret" in code)


def test_an_entry_point_that_hangs_is_ended_even_if_it_catches_exceptions(place):
    code = "try: time.sleep(60)\n    except Exception: time.sleep(60)"
    use_function(place, "rows_hanging", code)
    place.file.write_text(f"{place.file.read_text()}seconds = 1\n")
    start = time.monotonic()
    fields, _ = call(answer_offer, asked())
    assert "within 1 seconds" in fields["told"]
    assert (fields["failed"], time.monotonic() - start < 30) == (True, True)


def test_a_time_limit_ends_with_its_block():
    with time_limit(0.1):
        pass
    time.sleep(0.2)
    with pytest.raises(Refused, match=r"within 0\.1 seconds"), time_limit(0.1):
        time.sleep(0.3)


def test_damaged_uploads_are_made_again_and_do_not_hold_up_others(place):
    data = place.folder / "data"
    np.savez(data / "july.npz", **np.load(data / "may.npz"))
    for task in ("june", "july"):
        first = call(answer_offer, asked(task))[1][task]
    for envelope in place.outbox.folder.glob("*.envelope"):
        envelope.write_bytes(envelope.read_bytes()[:-9])
    assert call(answer_offer, make_record({"offer": None}, {}))[1] == {}
    (data / "june.npz").unlink()
    fields, blobs = call(answer_offer, asked())
    told = "task june: no rows for task june yet"
    assert (fields["told"], fields["failed"]) == (told, False)
    assert sorted(blobs) == ["july", "may"]
    assert blobs["july"] == first


def test_text_of_foreign_exceptions_does_not_go_to_the_server(tmp_path, caplog):
    inside = text_for_server(Refused(f"{tmp_path}/site.toml", "a table", "\x1b"), tmp_path)
    assert inside == "site.toml: expected a table, got \\x1b"
    told = text_for_server(RuntimeError("patient 4711"), tmp_path)
    assert told.startswith("RuntimeError at the site")
    assert "patient 4711" in caplog.text
    assert text_for_server(ValueError("/etc/site.toml"), None).startswith("ValueError at the site")
