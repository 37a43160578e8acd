"""``fedran demo``."""


def test_demo_prints_the_table_within_80_columns(cli):
    code, out, err = cli("demo")
    assert code == 0
    assert err == ""
    for word in (
        "FedRAN",
        "FedRAN-mixture",
        "FedRAN-paper",
        "Exact Gram",
        "FedNCM",
        "A_avg",
        "Where to go",
    ):
        assert word in out
    assert max(len(line) for line in out.splitlines()) <= 80
    assert "…" not in out
