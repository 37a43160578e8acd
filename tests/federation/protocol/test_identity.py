"""Keys, signatures and the roster decide who may send what."""

import os
import re
from dataclasses import replace

import pytest

pytest.importorskip("cryptography")

from hypothesis import given
from hypothesis import strategies as st

from fedran.core.errors import Refused
from fedran.federation.protocol.identity import (
    SUM,
    Roster,
    SiteKey,
    Statement,
    base_task,
    check_public,
    check_task,
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


@pytest.mark.parametrize("bad", ["", "a b", "x" * 65, "../x", "a\n"])
def test_an_id_with_special_characters_is_refused(bad):
    with pytest.raises(ValueError, match="expected a str of 1 to 64"):
        replace(SAID, client=bad)


@pytest.mark.parametrize("task", ["may", "may.2", "may.sum", "may-sum-1", "sum-1", "m" * 64])
def test_the_base_task_of_a_sum_is_the_task(task):
    assert check_task(task) == task
    assert base_task(task) == task
    for n in (1, 2, 10):
        assert base_task(f"{task}{SUM}{n}") == task


@given(st.from_regex(r"[A-Za-z0-9._-]{1,64}", fullmatch=True), st.integers(1, 10**6))
def test_a_task_cannot_have_the_name_of_a_sum(task, n):
    if SUM in task:
        with pytest.raises(Refused, match="which marks forwarded sums"):
            check_task(task)
    else:
        assert base_task(f"{check_task(task)}{SUM}{n}") == base_task(task) == task


@pytest.mark.parametrize("bad", ["may.sum-1", "may.sum-", ".sum-1", "a.sum-1.sum-2"])
def test_the_name_of_a_sum_is_no_task(bad):
    with pytest.raises(Refused, match="marks forwarded sums"):
        check_task(bad)
    assert SUM not in base_task(bad)


@pytest.mark.parametrize("bad", ["", "a b", "../x", "x" * 65, "a\n", 3, None, b"may"])
def test_the_name_of_a_task_is_a_valid_id(bad):
    with pytest.raises(Refused, match="task: expected a str of 1 to 64"):
        check_task(bad)


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


def test_a_roster_is_read_as_it_was_written(tmp_path):
    roster = Roster().with_site("site-1", SiteKey.generate().public)
    roster = roster.with_site("9.b_c-d", SiteKey.generate().public)
    roster.save(tmp_path / "roster.toml")
    assert Roster.load(tmp_path / "roster.toml") == roster


def test_a_roster_with_edges_is_read_as_it_was_written(tmp_path):
    path, public = tmp_path / "roster.toml", SiteKey.generate().public
    edges = {"9.b_c-d": ("site-1", "ward.2"), "a": (), "site-1": ("never-seen",)}
    roster = Roster({"site-1": public, "9.b_c-d": public}, edges)
    roster.save(path)
    assert Roster.load(path) == roster
    more = Roster.load(path).with_site("site-2", public)
    assert more.edges == edges
    assert more.without("site-2") == roster
    Roster(roster.clients).save(path)
    assert "[edges]" not in path.read_text()
    assert Roster.load(path).edges == {}


def test_a_roster_with_caps_on_rows_is_read_as_it_was_written(tmp_path):
    path, public = tmp_path / "roster.toml", SiteKey.generate().public
    roster = Roster({"site-1": public, "site-2": public}, rows={"site-1": 2000, "ward.2": 1})
    roster.save(path)
    assert Roster.load(path) == roster
    assert Roster.load(path).without("site-1").rows == {"ward.2": 1}
    for wrong in ("0", "-1", "1.5", "true", '"many"'):
        path.write_text(f'[clients]\n"site-1" = "{public}"\n[rows]\nsite-1 = {wrong}\n')
        with pytest.raises(Refused, match="a positive number"):
            Roster.load(path)


def test_a_known_site_keeps_its_key():
    key = SiteKey.generate().public
    roster = Roster().with_site("site-1", key)
    assert roster.with_site("site-1", key) == roster
    with pytest.raises(Refused, match="another key"):
        roster.with_site("site-1", SiteKey.generate().public)


def test_a_statement_signed_with_another_sites_key_is_refused():
    mine, theirs = SiteKey.generate(), SiteKey.generate()
    roster = Roster({"site-1": mine.public, "site-2": theirs.public}, {"site-1": ("a", "b")})
    roster.check(SAID, mine.sign(SAID))
    with pytest.raises(Refused, match="signature: expected a signature by the key of site-1"):
        roster.check(SAID, theirs.sign(SAID))
    with pytest.raises(Refused, match=r"client: expected a site of the roster \(did you mean"):
        roster.check(replace(SAID, client="site-11"), mine.sign(SAID))


def test_an_edge_may_only_list_its_own_members():
    key, other = SiteKey.generate(), SiteKey.generate()
    clients = {"site-1": key.public, "site-2": other.public}
    for edges, foreign in (
        ({}, r"\['a', 'b'\]"),
        ({"site-2": ("a", "b")}, r"\['a', 'b'\]"),
        ({"a": ("site-1",)}, r"\['a', 'b'\]"),
        ({"site-1": ("a",)}, r"\['b'\]"),
    ):
        words = f"members: expected members that the roster lists for site-1, got {foreign}"
        with pytest.raises(Refused, match=words):
            Roster(clients, edges).check(SAID, key.sign(SAID))
        with pytest.raises(Refused, match="signature"):  # whoever it is learns no more
            Roster(clients, edges).check(SAID, other.sign(SAID))
    Roster(clients, {"site-1": ("b", "a", "c")}).check(SAID, key.sign(SAID))
    own = replace(SAID, members=(("site-1", "may"),))
    for edges in ({}, {"site-1": ("site-1",)}):  # nobody's sum may hold its own upload
        with pytest.raises(Refused, match=r"got \['site-1'\]"):
            Roster(clients, edges).check(own, key.sign(own))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[clients", "not valid TOML"),
        ("[sites]\n", "a table \\[clients\\]"),
        ("clients = 3", "a table \\[clients\\]"),
        ('[clients]\n"a b" = "x"', "client: expected"),
        ('[clients]\na = "x"', "a: expected a key of the form"),
        ('[edges]\na = ["b"]', "a table \\[clients\\]"),
        ("[clients]\n[sites]", "and optionally \\[edges\\]"),
        ("edges = 3\n[clients]", "a list of members for each edge"),
        ('edges = ["a"]\n[clients]', "a list of members for each edge"),
        ("[clients]\n[[edges]]", "a list of members for each edge"),
        ('[clients]\n[edges]\na = "site-1"', "a list of members for each edge"),
        ("[clients]\n[edges]\na = {b = 1}", "a list of members for each edge"),
        ("[clients]\n[edges.a]\nb = []", "a list of members for each edge"),
        ("[clients]\n[edges]\na = true", "a list of members for each edge"),
        ("[clients]\n[edges]\na = [1]", "member: expected a str"),
        ('[clients]\n[edges]\na = [["b"]]', "member: expected a str"),
        ('[clients]\n[edges]\na = ["b", "../c"]', "member: expected a str"),
        ('[clients]\n[edges]\na = [""]', "member: expected a str"),
        ('[clients]\n[edges]\na = ["*"]', "member: expected a str"),
        ('[clients]\n[edges]\n"a b" = []', "client: expected a str"),
        ('[clients]\n[edges]\n"" = []', "client: expected a str"),
    ],
)
def test_a_wrong_roster_file_is_refused_with_the_reason(text, words, tmp_path):
    (tmp_path / "r.toml").write_text(text)
    with pytest.raises(ValueError, match=words):
        Roster.load(tmp_path / "r.toml")
    with pytest.raises(FileNotFoundError, match="expected the roster"):
        Roster.load(tmp_path / "none.toml")
