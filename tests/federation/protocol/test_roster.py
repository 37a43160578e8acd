"""The roster decides who may send what, and whom an edge may name as a member."""

from dataclasses import replace

import pytest

pytest.importorskip("cryptography")

from fedran.core.errors import Refused
from fedran.federation.protocol.identity import Proof, SiteKey, Statement
from fedran.federation.protocol.roster import Roster

SAID = Statement("trial", "site-1", "may.sum-1", "f" * 64, "d" * 64, (("a", "may"), ("b", "may")))
SIGNERS = {"a": SiteKey.generate(), "b": SiteKey.generate()}
KEYS = {name: key.public for name, key in SIGNERS.items()}


def said(client, **changes):
    return replace(Statement("trial", client, "may", "f" * 64, "e" * 64), **changes)


def proof(client, *, key=None, **changes):
    statement = said(client, **changes)
    return Proof(statement, (key or SIGNERS[client]).sign(statement))


PROOFS = (proof("a"), proof("b", revision=3))


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
    roster = Roster({"site-1": mine.public, "site-2": theirs.public}, {"site-1": ("a", "b")}, KEYS)
    roster.check(SAID, mine.sign(SAID), PROOFS)
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
    allowed = Roster(clients, {"site-1": ("b", "a", "c")}, KEYS)
    allowed.check(SAID, key.sign(SAID), PROOFS)
    own = replace(SAID, members=(("site-1", "may"),))
    for edges in ({}, {"site-1": ("site-1",)}):  # nobody's sum may hold its own upload
        with pytest.raises(Refused, match=r"got \['site-1'\]"):
            Roster(clients, edges).check(own, key.sign(own))


FORGED = {
    "no proof": (),
    "one proof for two members": PROOFS[:1],
    "proofs in another order": PROOFS[::-1],
    "a member that signed nothing": (PROOFS[0], proof("b", key=SiteKey.generate())),
    "a proof for another task": (PROOFS[0], proof("b", task="june")),
    "a proof for another federation": (PROOFS[0], proof("b", federation="elsewhere")),
    "a proof for other features": (PROOFS[0], proof("b", fingerprint="0" * 64)),
    "an altered digest": (PROOFS[0], replace(PROOFS[1], statement=said("b", digest="0" * 64))),
    "a proof of an edge with other members": (PROOFS[0], proof("b", members=(("c", "may"),))),
}


@pytest.mark.parametrize("proofs", FORGED.values(), ids=FORGED)
def test_a_sum_without_the_signature_of_every_member_is_refused(proofs):
    key = SiteKey.generate()
    roster = Roster({"site-1": key.public}, {"site-1": ("a", "b", "c")}, KEYS)
    with pytest.raises(Refused):
        roster.check(SAID, key.sign(SAID), proofs)
    roster.check(SAID, key.sign(SAID), PROOFS)


def test_a_member_without_a_known_key_cannot_be_named():
    key = SiteKey.generate()
    roster = Roster({"site-1": key.public}, {"site-1": ("a", "b")}, {"a": KEYS["a"]})
    with pytest.raises(Refused, match="members whose keys are known"):
        roster.check(SAID, key.sign(SAID), PROOFS)
    roster = roster.with_member("site-1", "b", KEYS["b"])
    roster.check(SAID, key.sign(SAID), PROOFS)


def test_members_of_an_edge_are_added_and_removed(tmp_path):
    key = SiteKey.generate().public
    roster = Roster({"edge": key, "site-1": key})
    more = roster.with_member("edge", "ward", KEYS["a"]).with_member("edge", "site-1", key)
    assert more.edges == {"edge": ("ward", "site-1")}
    assert more.members == {"ward": KEYS["a"]}  # the other one may send itself
    more.save(tmp_path / "roster.toml")
    assert Roster.load(tmp_path / "roster.toml") == more
    assert more.with_member("edge", "ward", KEYS["a"]) == more
    with pytest.raises(Refused, match="another key"):
        more.with_member("edge", "ward", KEYS["b"])
    assert more.with_other_key("ward", KEYS["b"]).key_of("ward") == KEYS["b"]
    assert more.without("ward").edges == {"edge": ("site-1",)}
    assert more.without("ward").members == {}
    for edge in ("nobody", "ward"):
        with pytest.raises(Refused, match="edge: expected another site of the roster"):
            more.with_member(edge, "ward", KEYS["a"])


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
        ("members = 3\n[clients]", "a public key for each member"),
        ('[clients]\n[members]\na = "x"', "a: expected a key of the form"),
        ("edges = 3\n[clients]", "a list of members for each edge"),
        ('edges = ["a"]\n[clients]', "a list of members for each edge"),
        ("[clients]\n[[edges]]", "a list of members for each edge"),
        ('[clients]\n[edges]\na = "site-1"', "a list of members for each edge"),
        ("[clients]\n[edges]\na = {b = 1}", "a list of members for each edge"),
        ("[clients]\n[edges.a]\nb = []", "a list of members for each edge"),
        ("[clients]\n[edges]\na = true", "a list of members for each edge"),
        ("[clients]\n[edges]\na = [1]", "member: expected text"),
        ('[clients]\n[edges]\na = [["b"]]', "member: expected text"),
        ('[clients]\n[edges]\na = ["b", "../c"]', "member: expected text"),
        ('[clients]\n[edges]\na = [""]', "member: expected text"),
        ('[clients]\n[edges]\na = ["*"]', "member: expected text"),
        ('[clients]\n[edges]\n"a b" = []', "client: expected text"),
        ('[clients]\n[edges]\n"" = []', "client: expected text"),
    ],
)
def test_a_wrong_roster_file_is_refused_with_the_reason(text, words, tmp_path):
    (tmp_path / "r.toml").write_text(text)
    with pytest.raises(ValueError, match=words):
        Roster.load(tmp_path / "r.toml")
    with pytest.raises(FileNotFoundError, match="expected the roster"):
        Roster.load(tmp_path / "none.toml")
