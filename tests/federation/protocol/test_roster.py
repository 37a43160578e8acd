"""The roster decides who may send what."""

from dataclasses import replace

import pytest

pytest.importorskip("cryptography")

from fedran.core.errors import Refused
from fedran.federation.protocol.identity import SiteKey, Statement
from fedran.federation.protocol.receipts import Code, UploadRefused
from fedran.federation.protocol.roster import Roster

SAID = Statement("trial", "site-1", "may", "f" * 64, "d" * 64)


def test_a_roster_is_read_as_it_was_written(tmp_path):
    roster = Roster().with_site("site-1", SiteKey.generate().public)
    roster = roster.with_site("9.b_c-d", SiteKey.generate().public)
    roster.save(tmp_path / "roster.toml")
    assert Roster.load(tmp_path / "roster.toml") == roster


def test_a_known_site_keeps_its_key():
    key = SiteKey.generate().public
    roster = Roster().with_site("site-1", key)
    assert roster.with_site("site-1", key) == roster
    with pytest.raises(Refused, match="another key"):
        roster.with_site("site-1", SiteKey.generate().public)


def test_a_statement_signed_with_another_sites_key_is_refused():
    mine, theirs = SiteKey.generate(), SiteKey.generate()
    roster = Roster({"site-1": mine.public, "site-2": theirs.public})
    roster.check(SAID, mine.sign(SAID))
    with pytest.raises(Refused, match="signature: expected a signature by the key of site-1"):
        roster.check(SAID, theirs.sign(SAID))
    with pytest.raises(Refused, match=r"client: expected a site of the roster \(did you mean"):
        roster.check(replace(SAID, client="site-11"), mine.sign(SAID))


def test_only_the_server_may_list_members_and_only_sites_with_the_task_of_the_sum():
    site, server = SiteKey.generate(), SiteKey.generate()
    roster = Roster({"site-1": site.public}, server_key=server.public)
    total = replace(SAID, client="cohort-1", members=(("site-1", "may"),), sum_number=1)
    roster.check(total, server.sign(total))
    with pytest.raises(UploadRefused, match="signature"):
        roster.check(total, site.sign(total))
    own = replace(total, client="site-1", sum_number=0)
    for wrong, key in (
        (own, site),
        (replace(total, members=(("site-2", "may"),)), server),
        (replace(total, members=(("site-1", "june"),)), server),
        (replace(total, members=()), server),
    ):
        with pytest.raises(UploadRefused, match="members: expected") as caught:
            roster.check(wrong, key.sign(wrong))
        assert caught.value.code == Code.FOREIGN_MEMBERS
    with pytest.raises(UploadRefused) as caught:  # a server without secure sums has no key
        replace(roster, server_key="").check(total, server.sign(total))
    assert caught.value.code == Code.UNKNOWN_CLIENT


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[clients", "not valid TOML"),
        ("[sites]\n", "a table \\[clients\\]"),
        ("clients = 3", "a table \\[clients\\]"),
        ('[clients]\n"a/b" = "x"', "client: expected"),
        ('[clients]\na = "x"', "a: expected a key of the form"),
        ("[clients]\n[rows]\na = 3", "a table \\[clients\\], and nothing else"),
    ],
)
def test_a_wrong_roster_file_is_refused_with_the_reason(text, words, tmp_path):
    (tmp_path / "r.toml").write_text(text)
    with pytest.raises(ValueError, match=words):
        Roster.load(tmp_path / "r.toml")
    with pytest.raises(FileNotFoundError, match="expected the roster"):
        Roster.load(tmp_path / "none.toml")
