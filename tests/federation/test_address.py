"""Addresses in configurations: host and port, and nothing that could be taken for an option."""

import pytest

pytest.importorskip("cryptography")

from fedran.core.errors import Refused
from fedran.federation.protocol.settings import check_address
from fedran.federation.server.settings import ServerSettings
from fedran.federation.site.settings import SiteSettings


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1:9443", ("127.0.0.1", 9443)),
        ("0.0.0.0:1", ("0.0.0.0", 1)),
        ("fl.example.org:65535", ("fl.example.org", 65535)),
        ("localhost:80", ("localhost", 80)),
    ],
)
def test_host_and_port_are_taken_apart(address, expected):
    assert check_address(address) == expected


WRONG = ["", ":", "host", "host:", ":9443", "host:port", "host:-1", "host:+1", "host: 1", "host:1 "]
WRONG += ["host:65536", "host:99999999", "host:1.5", "host:٣", "host:0x50", "host:1_0"]
ODD = ["two words:1", 'quote":1', "line\n:1", "http://host:9443", "--host:1", "user@host:1"]
ODD += ["host:0", "host:" + "1" * 5000]


@pytest.mark.parametrize("address", [*WRONG, *(pytest.param(a) for a in ODD)])
def test_anything_else_is_refused_in_one_sentence(address):
    with pytest.raises(Refused, match=r"address: expected host:port, such as") as caught:
        check_address(address)
    assert "\n" not in str(caught.value)


def test_both_configurations_check_theirs():
    with pytest.raises(ValueError, match=r"address must be host:port, such as .*, got 'nowhere'"):
        ServerSettings("trial", 6, address="nowhere")
    with pytest.raises(ValueError, match=r"server must be host:port, such as .*, got 'nowhere:'"):
        SiteSettings("trial", "site-1", server="nowhere:", folder="data")
