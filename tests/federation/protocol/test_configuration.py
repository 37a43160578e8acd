"""Configuration files of server and site."""

import pytest

pytest.importorskip("cryptography")

from fedran.core.errors import Refused
from fedran.federation.protocol.configuration import check_address, load_settings
from fedran.federation.server.settings import ServerSettings
from fedran.federation.site.settings import SiteSettings
from fedran.wire.head_codec import head_fits
from fedran.wire.validation import Limits

SERVER = 'federation = "trial"\nin_features = 6\n'


SITE = 'federation = "trial"\nclient = "site-1"\nfolder = "data"\n'


def read(kind, text, tmp_path):
    path = tmp_path / "c.toml"
    path.write_text(text)
    return load_settings(kind, path)


def test_settings_that_are_not_given_have_defaults(tmp_path):
    server = read(ServerSettings, SERVER, tmp_path)
    assert (server.privacy, server.min_group, server.landmarks) == ("none", 5, 4096)
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
        (ServerSettings, SERVER + "deadline = 0", "deadline must be from 1 to 31_536_000, got 0"),
        (ServerSettings, SERVER + "out_features = 0", "out_features must be from 1 to 131_072"),
        (ServerSettings, 'federation = "a/b"\nin_features = 6', "federation must be 1 to 64"),
        (ServerSettings, "nonsense", "not valid TOML"),
        (SiteSettings, SITE + 'entry = "a:b"', "either folder or entry, got both"),
        (SiteSettings, SITE.replace("folder", "entry"), None),
        (SiteSettings, SITE.rsplit("folder")[0], "either folder or entry, got neither"),
        (SiteSettings, SITE + 'pseudo_labels = "yes"', "must be one of margin, none, got 'yes'"),
        (SiteSettings, SITE + "min_sites = 1", "min_sites must be from 2"),
        (SiteSettings, SITE + "seconds = 0", "seconds must be from 1 to"),
        (SiteSettings, SITE + "source = 3", "source must be text or a table or none"),
        (SiteSettings, SITE + "[source]\nweights = 3", "source: expected text, or a table of 1"),
        (ServerSettings, SERVER + "[source]", "source: expected text, or a table of 1 to"),
        (ServerSettings, SERVER + '[source]\nseed = "3"', "source: expected values that a"),
    ],
)
def test_a_wrong_configuration_is_an_error_that_names_file_and_setting(kind, text, words, tmp_path):
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


def test_a_missing_configuration_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="expected a configuration"):
        load_settings(ServerSettings, tmp_path / "none.toml")


def test_a_task_name_is_checked_before_it_is_offered(tmp_path):
    with pytest.raises(Refused, match="task"):
        read(ServerSettings, SERVER, tmp_path).offer("../may")


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1:9443", ("127.0.0.1", 9443)),
        ("0.0.0.0:1", ("0.0.0.0", 1)),
        ("fl.example.org:65535", ("fl.example.org", 65535)),
        ("localhost:80", ("localhost", 80)),
        ("[::]:80", ("::", 80)),
        ("[2001:db8::7]:9443", ("2001:db8::7", 9443)),
    ],
)
def test_an_address_is_split_into_host_and_port(address, expected):
    assert check_address(address) == expected


WRONG = ["", ":", "host", "host:", ":9443", "host:port", "host:-1", "host:+1", "host: 1", "host:1 "]
WRONG += ["host:65536", "host:99999999", "host:1.5", "host:٣", "host:0x50", "host:1_0"]


ODD = ["two words:1", 'quote":1', "line\n:1", "http://host:9443", "--host:1", "user@host:1"]
ODD += ["::1:9443", "[::1]", "[host]:1", "[127.0.0.1]:1", "[::1]9443"]
ODD += ["host:0", "host:" + "1" * 5000]


@pytest.mark.parametrize("address", [*WRONG, *(pytest.param(a) for a in ODD)])
def test_a_text_that_is_not_host_and_port_is_refused_in_one_sentence(address):
    with pytest.raises(Refused, match=r"address: expected host:port, such as") as caught:
        check_address(address)
    assert "\n" not in str(caught.value)


def test_server_and_site_settings_check_their_address():
    with pytest.raises(ValueError, match=r"address must be host:port, such as .*, got 'nowhere'"):
        ServerSettings("trial", 6, address="nowhere")
    with pytest.raises(ValueError, match=r"server must be host:port, such as .*, got 'nowhere:'"):
        SiteSettings("trial", "site-1", server="nowhere:", folder="data")


def test_rows_have_unit_norm():
    with pytest.raises(ValueError, match="kind must be one of hellinger, cosine, got 'relu'"):
        ServerSettings("t", 6, kind="relu")


@pytest.mark.parametrize(("width", "support"), [(6, 4096), (1280, 4096), (2**17, 256)])
def test_a_head_has_as_many_landmarks_as_sites_can_read(width, support):
    settings = ServerSettings("t", width)
    assert settings.support == support
    assert head_fits(range(100), width, Limits(), settings.support)


SECURE = {"classes": [0, 1], "privacy": "secure"}


@pytest.mark.parametrize(("sketch", "columns"), [(0, 0), (511, 511), (512, 0), (2000, 0)])
def test_a_sketch_that_is_not_smaller_than_the_gram_matrix_is_replaced_by_it(sketch, columns):
    settings = ServerSettings("t", 6, **SECURE, out_features=1024, sketch=sketch)
    assert settings.sketch_columns == columns


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"classes": None}, "needs `classes`"),
        ({"out_features": 16384, "sketch": 0}, "a smaller `sketch` needs fewer"),
    ],
)
def test_settings_that_do_not_fit_secure_sums_are_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        ServerSettings("t", 6, **{**SECURE, **changes})
