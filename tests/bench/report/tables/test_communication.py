"""The communication tables: bytes, ratios, and the figures of the paper."""

from fedran.bench.report.tables.communication import communication_tables
from helpers.made_up import METHODS, made_up
from helpers.made_up_trained import heads
from helpers.made_up_vit import PLACE
from helpers.report_tables import texts


def test_fedran_is_compared_with_the_printed_and_the_measured_upload_of_the_paper():
    tables = communication_tables([made_up(**m) for m in METHODS])
    ours, theirs = 1_110_000, 67_780_000
    assert [c.text for c in tables[0].rows[0]][2:] == [
        f"{ours / 2**20:.2f}",
        f"{theirs / 2**20:.2f}",
        f"{theirs / ours:.3g}x",
        "134.27",
        f"{134.27 * 2**20 / ours:.0f}x",
    ]
    assert texts(tables[1], "ratio to FedRAN")["FedRAN"] == "1x"
    assert texts(tables[1], "formula")["FedRAN-paper"] == "134.27"


def test_heads_have_no_printed_upload():
    (table,) = communication_tables(heads())
    assert set(texts(table, "upload, printed").values()) == {"-"}


def test_the_longest_table_of_a_setting_is_shown_and_the_others_are_exported():
    runs = [made_up("a", beta=b) for b in (0.1, 0.5, 1.0)]
    assert [t.exported for t in communication_tables(runs)] == [False, True, True]
    runs += [made_up("b", beta=0.5), made_up("a", beta=0.1, clients=100)]
    assert [t.exported for t in communication_tables(runs)] == [True, False, True, False]


def test_fedran_on_a_fine_tuned_network_is_not_the_base_of_ratios():
    place = {**PLACE, "beta": 0.5}
    tuned = made_up("fedran", "FedRAN (tuned)", upload=4_000_000, params={"task0": {}}, **place)
    plain = made_up("fedran", "FedRAN", upload=500_000, **place)
    first, second = communication_tables([tuned, plain])
    assert first.rows[0][2].text == f"{500_000 / 2**20:.3f}"
    assert texts(second, "ratio to FedRAN") == {"FedRAN": "1x", "FedRAN (tuned)": "8x"}
