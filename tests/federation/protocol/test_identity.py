"""Keys and signatures say who sent what."""

import os
import re
from dataclasses import replace

import pytest

pytest.importorskip("cryptography")

from hypothesis import given
from hypothesis import strategies as st

from fedran.core.errors import Refused
from fedran.federation.protocol.identity import (
    SiteKey,
    Statement,
    check_public,
    verify,
)

SAID = Statement("trial", "site-1", "may", "f" * 64, "d" * 64, (("a", "may"), ("b", "may")))


def test_a_signature_covers_every_field():
    key = SiteKey.generate()
    signature = key.sign(SAID)
    verify(key.public, SAID, signature)
    changes = {
        "federation": "other",
        "client": "site-2",
        "task": "june",
        "fingerprint": "0" * 64,
        "digest": "0" * 64,
        "members": (("a", "may"),),
        "revision": 1,
        "sum_number": 1,
    }
    for name, value in changes.items():
        with pytest.raises(Refused, match="signature: expected a signature by the key of"):
            verify(key.public, replace(SAID, **{name: value}), signature)


@given(st.binary(max_size=80))
def test_random_bytes_are_not_a_signature(blob):
    key = SiteKey.generate()
    with pytest.raises(Refused, match="signature"):
        verify(key.public, SAID, blob)


def test_moving_a_letter_between_fields_changes_the_signed_text():
    moved = Statement("trial", "site-1m", "ay", "f" * 64, "d" * 64, SAID.members)
    assert moved.to_bytes() != SAID.to_bytes()


@pytest.mark.parametrize("bad", ["", "a  b", " a", "x" * 65, "../x", "a\n"])
def test_an_id_with_special_characters_is_refused(bad):
    with pytest.raises(ValueError, match="expected text of 1 to 64"):
        replace(SAID, client=bad)


def test_a_statement_lists_each_member_once():
    with pytest.raises(Refused, match="each member once"):
        replace(SAID, members=(("a", "may"), ("a", "may")))


def test_a_key_file_is_private_and_not_overwritten(tmp_path):
    key, path = SiteKey.generate(), tmp_path / "key"
    key.save(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert SiteKey.load(path).public == key.public
    with pytest.raises(FileExistsError):
        SiteKey.generate().save(path)
    assert SiteKey.load(path).public == key.public


@pytest.mark.skipif(os.name != "posix", reason="permissions")
def test_a_key_that_others_can_read_is_refused(tmp_path):
    path = tmp_path / "key"
    SiteKey.generate().save(path)
    path.chmod(0o640)
    with pytest.raises(PermissionError, match=re.escape(f"chmod 600 {path}")):
        SiteKey.load(path)


def test_error_messages_do_not_contain_the_secret_key(tmp_path):
    path = tmp_path / "key"
    SiteKey.generate().save(path)
    secret = path.read_text().strip()
    path.write_text(secret[:-6])
    path.chmod(0o600)
    with pytest.raises(Refused) as caught:
        SiteKey.load(path)
    assert secret[10:30] not in str(caught.value)
    assert secret[10:30] not in repr(SiteKey.generate())


@pytest.mark.parametrize("bad", ["", "ed25519:", "rsa:" + "A" * 44, "ed25519:" + "A" * 43, 3])
def test_a_text_that_is_not_a_public_key_is_refused(bad):
    with pytest.raises(Refused, match=r"site-1: expected (a key|text)"):
        check_public(bad, "site-1")
