"""``fedran federation status --influence``, ``rollback --release`` and ``accept --reject``."""

import json

import numpy as np
import pytest

pytest.importorskip("flwr")

from fedran.federation.server.head.head import update_head
from helpers.federation.gated import VALIDATION, flipped, gated_sites, honest, rows, send, store_of
from helpers.federation.made_federation import D, M


@pytest.fixture
def server(tmp_path):
    """The folder of a server that holds a head back."""
    sites = gated_sites()
    np.savez(tmp_path / "v.npz", features=VALIDATION.rows.X, labels=VALIDATION.rows.y)
    settings = f'federation = "trial"\nin_features = {D}\nout_features = {M}\nsource = "test"\n'
    (tmp_path / "server.toml").write_text(settings + 'validation = "v.npz"\n')
    sites.roster.save(tmp_path / "roster.toml")
    store = store_of(sites, tmp_path / "state")
    honest(store, sites, "may", (0, 1))
    update_head(store, VALIDATION, "may", 2.0)
    assert send(store, sites, "site-5", "june", flipped(rows(7, (0, 1)), 0, 1), times=5)
    update_head(store, VALIDATION, "june", 2.0)
    store.close()
    return tmp_path


def test_influence_names_the_liar_in_the_status(server, cli):
    code, out, err = cli("federation", "status", str(server), "--influence", "--json")
    assert (code, "one solve per site" in err) == (0, True)
    gains = {site["client"]: site["gain"] for site in json.loads(out)["sites"]}
    assert max(gains, key=gains.get) == "site-5"
    code, out, _ = cli("federation", "status", str(server), "--influence")
    assert (code, f"{gains['site-5']:+.1f}" in out) == (0, True)


def test_influence_needs_validation_rows(server, cli):
    path = server / "server.toml"
    path.write_text(path.read_text().replace('validation = "v.npz"', ""))
    code, out, err = cli("federation", "status", str(server), "--influence")
    assert (code, out) == (2, "")
    assert "name a file with `validation`" in err


def test_release_puts_the_held_head_into_service(server, cli):
    held = (server / "state" / "held.fedran").read_bytes()
    code, out, _ = cli("federation", "rollback", str(server), "--release")
    assert (code, "is in service" in out) == (0, True)
    assert (server / "state" / "head.fedran").read_bytes() == held
    code, out, err = cli("federation", "rollback", str(server), "--release")
    assert (code, "expected a head that is held back, got none" in err) == (2, True)


def test_reject_ends_a_quarantine(server, cli):
    sites = gated_sites()
    sites.roster.save(server / "roster.toml")
    store = store_of(sites, server / "state")
    assert not send(store, sites, "site-3", "july", rows(3, (0, 1)), times=50)
    store.close()
    who = str(server), "site-3", "july"
    code, _, err = cli("federation", "accept", *who, "--reason", "no")
    assert (code, "--reject" in err) == (2, True)
    code, out, _ = cli("federation", "accept", *who, "--reject", "--reason", "no")
    assert (code, "site-3, july: rejected" in out) == (0, True)
    code, _, err = cli("federation", "accept", *who, "--reject")
    assert (code, "expected an upload in quarantine" in err) == (2, True)
