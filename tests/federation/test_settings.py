"""Configuration files of server and site, and when a task goes on."""

import pytest

pytest.importorskip("cryptography")

from fedran.core.errors import Refused
from fedran.federation.protocol.receipts import Code, Receipt
from fedran.federation.protocol.settings import load_settings
from fedran.federation.server.round import Quorum
from fedran.federation.server.settings import ServerSettings
from fedran.federation.site.settings import SiteSettings

SERVER = 'federation = "trial"\nin_features = 6\n'
SITE = 'federation = "trial"\nclient = "site-1"\nfolder = "data"\n'


def read(kind, text, tmp_path):
    path = tmp_path / "c.toml"
    path.write_text(text)
    return load_settings(kind, path)


def test_what_is_not_said_has_a_default(tmp_path):
    server = read(ServerSettings, SERVER, tmp_path)
    assert (server.out_features, server.min_clients, server.snapshot_every) == (8192, 1, 20)
    offer = server.offer("may")
    assert (offer.task, offer.in_features, offer.budget_bytes) == ("may", 6, 1_500_000)
    site = read(SiteSettings, SITE + "seconds = 30\n", tmp_path)
    assert (site.min_class_count, site.pseudo_labels, site.seconds) == (5, "margin", 30)


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        (ServerSettings, "in_features = 6", "needs the setting 'federation', found in_features"),
        (ServerSettings, SERVER + "deadlin = 3", r"no setting 'deadlin' \(did you mean 'deadline'"),
        (ServerSettings, SERVER + 'seed = "a"', "seed must be an integer, got 'a'"),
        (ServerSettings, SERVER + "seed = true", "seed must be an integer, got True"),
        (ServerSettings, SERVER + "deadline = 0", "deadline must be from 1 to 31,536,000, got 0"),
        (ServerSettings, SERVER + "out_features = 0", "out_features must be from 1 to 131,072"),
        (ServerSettings, 'federation = "a b"\nin_features = 6', "federation must be 1 to 64"),
        (ServerSettings, "nonsense", "not valid TOML"),
        (SiteSettings, SITE + 'entry = "a:b"', "either folder or entry, got both"),
        (SiteSettings, SITE.replace("folder", "entry"), None),
        (SiteSettings, SITE.rsplit("folder")[0], "either folder or entry, got neither"),
        (SiteSettings, SITE + 'pseudo_labels = "yes"', "must be one of margin, none, got 'yes'"),
        (SiteSettings, SITE + "memory_mib = 1", "memory_mib must be from 256"),
        (SiteSettings, SITE + "seconds = 0", "seconds must be from 1 to"),
        (SiteSettings, SITE + "own_process = 1", "own_process must be true or false, got 1"),
        (SiteSettings, SITE + "source = 3", "source must be text or a table or none"),
        (SiteSettings, SITE + "[source]\nweights = 3", "source: expected text, or a table of 1"),
        (ServerSettings, SERVER + "[source]", "source: expected text, or a table of 1 to"),
        (ServerSettings, SERVER + '[source]\nseed = "3"', "source: expected what a fingerprint"),
    ],
)
def test_a_wrong_file_says_what_is_wrong(kind, text, words, tmp_path):
    if words is None:
        assert read(kind, text, tmp_path).entry == "data"
        return
    with pytest.raises(ValueError, match=words) as caught:
        read(kind, text, tmp_path)
    assert str(caught.value).startswith(str(tmp_path))


def test_a_source_is_a_text_or_a_table(tmp_path):
    table = '[source]\nbackbone = "toy"\nweights = "ab"\n'
    expected = {"backbone": "toy", "weights": "ab"}
    server = read(ServerSettings, SERVER + table, tmp_path)
    assert server.source == server.offer("may").source == expected
    assert server.offer("may").features().source == expected
    assert read(SiteSettings, SITE + table, tmp_path).source == expected
    assert read(SiteSettings, SITE + 'source = "toy"', tmp_path).source == "toy"
    assert read(SiteSettings, SITE, tmp_path).source is None


def test_no_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="expected a configuration"):
        load_settings(ServerSettings, tmp_path / "none.toml")


def test_a_task_name_is_checked_before_it_is_offered(tmp_path):
    with pytest.raises(Refused, match="task"):
        read(ServerSettings, SERVER, tmp_path).offer("../may")


def receipt(client, code=Code.ACCEPTED):
    return Receipt(code, client, "may", "d")


def test_a_task_is_complete_when_everyone_has_answered():
    task = Quorum(frozenset("abc"), 2, 60)
    assert task.verdict(0) == "wait"
    for client in "abc":
        task.answer(receipt(client))
    assert task.verdict(1) == "complete"
    assert task.missing == []


def test_refused_and_quarantined_uploads_do_not_count():
    task = Quorum(frozenset("abc"), 2, 60)
    for client, code in zip("abc", (Code.INVALID, Code.QUARANTINED, Code.ACCEPTED), strict=True):
        task.answer(receipt(client, code))
    assert (task.accepted, task.verdict(1)) == (1, "short")
    task.answer(receipt("a", Code.DUPLICATE))
    assert task.verdict(1) == "complete"


def test_the_deadline_decides_with_what_came():
    task = Quorum(frozenset("abc"), 2, 60)
    task.answer(receipt("a"))
    assert (task.verdict(59.9), task.verdict(60)) == ("wait", "short")
    task.answer(receipt("b"))
    assert (task.verdict(59.9), task.verdict(60)) == ("wait", "quorum")
    assert task.missing == ["c"]


def test_uploads_of_others_do_not_make_a_quorum():
    task = Quorum(frozenset("ab"), 2, 60)
    task.answer(receipt("late"))
    task.answer(receipt("a"))
    assert task.accepted == 1


def test_a_quorum_that_cannot_be_reached_is_refused():
    with pytest.raises(ValueError, match="min_clients is 3, but the roster has 2 sites"):
        Quorum(frozenset("ab"), 3, 60)
