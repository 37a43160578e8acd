"""Private files, node keys and cards: what Flower must be able to read, and what others send."""

import os
import stat

import pytest

pytest.importorskip("cryptography")

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_ssh_private_key,
    load_ssh_public_key,
)

from fedran.core.errors import Refused
from fedran.federation.ops.enrolment import Card
from fedran.federation.ops.node_key import check_node_public, make_node_key
from fedran.federation.protocol.identity import SiteKey, check_private, write_private

posix = pytest.mark.skipif(os.name != "posix", reason="modes")


@posix
@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_a_private_file_is_for_its_owner_alone(umask, tmp_path):
    before = os.umask(umask)
    try:
        write_private(tmp_path / "key", b"secret")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    assert (tmp_path / "key").read_bytes() == b"secret"
    check_private(tmp_path / "key", "a key")


@posix
def test_an_existing_file_or_link_is_not_written_to(tmp_path):
    write_private(tmp_path / "key", b"old")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for name in ("key", "link"):
        with pytest.raises(FileExistsError):
            write_private(tmp_path / name, b"new")
    assert (tmp_path / "key").read_bytes() == b"old"
    assert not (tmp_path / "elsewhere").exists()


@posix
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o610, 0o602, 0o777])
def test_a_key_that_others_can_reach_is_refused_with_the_remedy(mode, tmp_path):
    write_private(tmp_path / "key", b"secret")
    (tmp_path / "key").chmod(mode)
    with pytest.raises(PermissionError, match=f"run `chmod 600 {tmp_path}/key`") as caught:
        check_private(tmp_path / "key", "a key")
    assert "secret" not in str(caught.value)


def test_a_missing_key_is_named(tmp_path):
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(FileNotFoundError, match="no such file; expected a key"):
            check_private(path, "a key")


def test_flower_reads_the_pair(tmp_path):
    """As ``flower-supernode`` loads the private key, and ``flwr supernode register`` the other."""
    public = make_node_key(tmp_path / "node.key")
    assert stat.S_IMODE((tmp_path / "node.key").stat().st_mode) == 0o600
    private = load_ssh_private_key((tmp_path / "node.key").read_bytes(), None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    assert isinstance(private.curve, ec.SECP384R1)
    found = load_ssh_public_key(public.encode())
    found.verify(private.sign(b"x", ec.ECDSA(hashes.SHA256())), b"x", ec.ECDSA(hashes.SHA256()))
    assert check_node_public(public) == public
    assert public.split()[0] == "ecdsa-sha2-nistp384"
    assert "\n" not in public


def test_every_node_key_is_another(tmp_path):
    assert make_node_key(tmp_path / "a") != make_node_key(tmp_path / "b")
    with pytest.raises(FileExistsError):
        make_node_key(tmp_path / "a")


def node_public():
    key = ec.generate_private_key(ec.SECP384R1()).public_key()
    return key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


NODE = node_public()
OTHER_KIND = (
    ed25519.Ed25519PrivateKey.generate()
    .public_key()
    .public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    .decode()
)
BAD_NODES = [None, 3, b"x", [NODE], "", " ", "ecdsa-sha2-nistp384", NODE[:-8], OTHER_KIND]
BAD_NODES += [NODE + "x" * 1000, "\n" + NODE, "ecdsa-sha2-nistp384 ÄÄÄÄ", NODE.split()[1]]
BAD_NODES += ["ssh-rsa " + NODE.split()[1], "\ud800"]
SEVERAL_LINES = [f"{NODE}\n{NODE}", NODE + " \x1b[31m", NODE + "\nssh-rsa AAAA", NODE + " \r\n x"]


@pytest.mark.parametrize(
    "public",
    [*BAD_NODES, *(pytest.param(text) for text in SEVERAL_LINES)],
    ids=range(len(BAD_NODES + SEVERAL_LINES)),  # keys are new every time, names of tests are not
)
def test_what_is_no_node_key_is_refused_and_not_repeated(public):
    with pytest.raises(Refused, match="node: expected a line such as ecdsa-sha2-nistp384") as found:
        check_node_public(public)
    assert len(str(found.value)) < 150


CARD = Card("trial", "site-1", SiteKey.generate().public, NODE)


def test_a_card_is_read_as_it_was_written(tmp_path):
    CARD.save(tmp_path / "card.toml")
    assert Card.load(tmp_path / "card.toml") == CARD
    text = (tmp_path / "card.toml").read_text()
    assert text.startswith("# Give this file to the server's owner")


def card_text(**changes):
    fields = {name: f'"{value}"' for name, value in vars(CARD).items()} | changes
    return "".join(f"{name} = {value}\n" for name, value in fields.items() if value is not None)


WRONG = [
    *(({"federation": v}, "federation: expected a str") for v in ('""', '"a b"', '"../x"', "3")),
    *(({"client": v}, "client: expected a str") for v in ('""', '"../x"', '"a/b"', "[]", "true")),
    ({"client": f'"{"x" * 65}"'}, "client: expected a str of 1 to 64"),
    ({"client": r'"a\nb"'}, "client: expected"),
    ({"client": r'"\u001b[31m"'}, "client: expected"),
    *(({"key": v}, "key: expected") for v in ('""', "3", '"ed25519:"', '"ed25519:AAAA"', "[1]")),
    ({"key": f'"{NODE}"'}, "key: expected a key of the form ed25519:"),
    ({"key": f'"rsa:{CARD.key[8:]}"'}, "key: expected a key of the form ed25519:"),
    ({"key": f'"{CARD.key} "'}, "key: expected a key of the form ed25519:"),
    *(({"node": v}, "node: expected a line") for v in ('""', "3", "[]", f'"{CARD.key}"')),
    ({"node": None}, "expected client, federation, key, node, got"),
    ({"extra": "1"}, "expected client, federation, key, node, got"),
    ({"federation": "{}"}, "federation: expected a str"),
    ({"federation": "= ="}, "not valid TOML"),
]


@pytest.mark.parametrize(("changes", "words"), WRONG)
def test_a_card_with_a_wrong_field_is_refused_in_one_sentence(changes, words, tmp_path):
    (tmp_path / "card.toml").write_text(card_text(**changes))
    with pytest.raises(ValueError, match=words) as caught:
        Card.load(tmp_path / "card.toml")
    assert "\x1b" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_card_of_no_text_is_refused(tmp_path):
    (tmp_path / "card.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="not valid TOML"):
        Card.load(tmp_path / "card.toml")
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(FileNotFoundError, match="expected a site's card"):
            Card.load(path)
