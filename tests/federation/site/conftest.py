"""A site in a folder."""

import pytest


@pytest.fixture
def place(tmp_path, monkeypatch):
    pytest.importorskip("flwr")
    from fedran.federation.flower.clientapp import VARIABLE
    from helpers.federation.site_app import Place

    found = Place(tmp_path / "site")
    monkeypatch.setenv(VARIABLE, str(found.file))
    return found
