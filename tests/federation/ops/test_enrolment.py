"""Enrolment files, and sites that enter and leave a federation."""

from dataclasses import replace

import pytest

pytest.importorskip("cryptography")

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from fedran.core.errors import Refused
from fedran.federation.ops.enrolment import Enrolment, add_site, remove_site
from fedran.federation.ops.scaffold import make_server, make_site
from fedran.federation.protocol.identity import SiteKey
from fedran.federation.protocol.keys import make_node_key
from fedran.federation.protocol.roster import Roster
from fedran.federation.server.settings import ServerSettings

NODE = (
    ec.generate_private_key(ec.SECP384R1())
    .public_key()
    .public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    .decode()
)
ENROLMENT = Enrolment("trial", "site-1", SiteKey.generate().public, NODE)


def test_an_enrolment_file_is_read_as_it_was_written(tmp_path):
    ENROLMENT.save(tmp_path / "enrolment.toml")
    assert Enrolment.load(tmp_path / "enrolment.toml") == ENROLMENT
    text = (tmp_path / "enrolment.toml").read_text()
    assert text.startswith("# Give this file to the owner of the server")


def enrolment_text(**changes):
    fields = {name: f'"{value}"' for name, value in vars(ENROLMENT).items()} | changes
    return "".join(f"{name} = {value}\n" for name, value in fields.items() if value is not None)


WRONG = [
    *(({"federation": v}, "federation: expected text") for v in ('""', '"a  b"', '"../x"', "3")),
    *(({"client": v}, "client: expected text") for v in ('""', '"../x"', '"a/b"', "[]", "true")),
    ({"client": f'"{"x" * 65}"'}, "client: expected text of 1 to 64"),
    ({"client": r'"a\nb"'}, "client: expected"),
    ({"client": r'"\u001b[31m"'}, "client: expected"),
    *(({"key": v}, "key: expected") for v in ('""', "3", '"ed25519:"', '"ed25519:AAAA"', "[1]")),
    ({"key": f'"{NODE}"'}, "key: expected a key of the form ed25519:"),
    ({"key": f'"rsa:{ENROLMENT.key[8:]}"'}, "key: expected a key of the form ed25519:"),
    ({"key": f'"{ENROLMENT.key} "'}, "key: expected a key of the form ed25519:"),
    *(({"node": v}, "node: expected a line") for v in ('""', "3", "[]", f'"{ENROLMENT.key}"')),
    ({"node": None}, "expected client, federation, key, node, got"),
    ({"extra": "1"}, "expected client, federation, key, node, got"),
    ({"federation": "{}"}, "federation: expected text"),
    ({"federation": "= ="}, "not valid TOML"),
    ({"key": "[" * 10**5 + "]" * 10**5}, "not valid TOML: nested too deeply"),
]


@pytest.mark.parametrize(("changes", "words"), WRONG)
def test_an_enrolment_file_with_a_wrong_field_is_refused_in_one_sentence(changes, words, tmp_path):
    (tmp_path / "enrolment.toml").write_text(enrolment_text(**changes))
    with pytest.raises(ValueError, match=words) as caught:
        Enrolment.load(tmp_path / "enrolment.toml")
    assert "\x1b" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_enrolment_file_that_is_missing_or_not_text_is_an_error(tmp_path):
    (tmp_path / "enrolment.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="not valid TOML"):
        Enrolment.load(tmp_path / "enrolment.toml")
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(FileNotFoundError, match="expected an enrolment file"):
            Enrolment.load(path)


def tree(folder):
    """Every file below a folder with its bytes."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture
def server(tmp_path):
    return make_server(tmp_path / "server", ServerSettings("trial", 6))


@pytest.fixture
def join(server, tmp_path):
    def call(name, **changes):
        told = {"federation": "trial", "server": "fl.example.org:9443", **changes}
        told.setdefault("ca", server.tls / "ca.crt")
        return make_site(tmp_path / name, client=name, **told)

    return call


def nodes(place):
    return {p.stem: p.read_text() for p in place.nodes.iterdir()}


def test_roster_and_nodes_agree_through_adding_and_removing(join, server):
    enrolments = [join(name) for name in ("site-1", "site-2", "a.dot", "a.pub")]
    for enrolment in (*enrolments, enrolments[0]):
        add_site(server, enrolment)
    assert Roster.load(server.roster).clients == {c.client: c.key for c in enrolments}
    assert nodes(server) == {c.client: c.node for c in enrolments}
    remove_site(server, "site-1")
    assert Roster.load(server.roster).clients.keys() == nodes(server).keys()
    assert "site-1" not in nodes(server)
    with pytest.raises(Refused, match="a site of the roster"):
        remove_site(server, "site-1")
    remove_site(server, "site-2")
    add_site(server, enrolments[0])
    assert nodes(server)["site-1"] == enrolments[0].node


def test_a_site_without_a_node_key_can_still_be_removed(join, server):
    add_site(server, join("site-1"))
    (server.nodes / "site-1.pub").unlink()
    remove_site(server, "site-1")
    assert Roster.load(server.roster).clients == {}


def test_removing_takes_client_ids_and_no_paths(join, server):
    add_site(server, join("site-1"))
    (server.folder / "keep.pub").write_text("x")
    for name in ("../keep", "", "site", "site-1.pub"):
        with pytest.raises(Refused, match="a site of the roster"):
            remove_site(server, name)
    assert (server.folder / "keep.pub").exists()


def test_an_enrolment_for_another_federation_changes_nothing(join, server):
    add_site(server, join("site-1"))
    before = tree(server.folder)
    with pytest.raises(Refused, match="federation: expected trial, got elsewhere"):
        add_site(server, join("site-2", federation="elsewhere"))
    assert tree(server.folder) == before


def test_a_known_client_with_another_key_changes_nothing(join, server, tmp_path):
    enrolment = join("site-1")
    add_site(server, enrolment)
    before = tree(server.folder)
    thief = replace(
        enrolment, key=SiteKey.generate().public, node=make_node_key(tmp_path / "thief.key")
    )
    with pytest.raises(Refused, match="a new id, or the known key of site-1"):
        add_site(server, thief)
    assert tree(server.folder) == before


def test_a_roster_that_cannot_be_written_admits_no_node(join, server, monkeypatch):
    """Not half-changed: connecting without being able to upload helps nobody."""
    enrolment = join("site-1")
    monkeypatch.setattr(Roster, "save", lambda *_: (_ for _ in ()).throw(OSError(28, "No space")))
    with pytest.raises(OSError, match="No space"):
        add_site(server, enrolment)
    monkeypatch.undo()
    assert (Roster.load(server.roster).clients, nodes(server)) == ({}, {})
    add_site(server, enrolment)
    assert nodes(server) == {"site-1": enrolment.node}


def test_a_node_key_belongs_to_one_site_and_cannot_change(join, server):
    first, second = join("site-1"), join("site-2")
    add_site(server, first)
    with pytest.raises(Refused, match="a key of its own, got the key of site-1"):
        add_site(server, replace(second, node=first.node))
    with pytest.raises(Refused, match="the key it was added with, got another key"):
        add_site(server, replace(first, node=second.node))
    assert set(nodes(server)) == {"site-1"}


def test_a_site_that_joins_again_is_admitted_and_its_old_key_is_refused(join, server):
    first, second = join("site-1"), replace(join("site-2"), client="site-1")
    add_site(server, first)
    with pytest.raises(Refused, match="another key"):
        add_site(server, second)
    add_site(server, second, replace_keys=True)
    assert nodes(server) == {"site-1": second.node}
    assert Roster.load(server.roster).clients == {"site-1": second.key}
    stranger = replace(second, client="site-9")
    with pytest.raises(Refused, match="a site of the roster"):
        add_site(server, stranger, replace_keys=True)
