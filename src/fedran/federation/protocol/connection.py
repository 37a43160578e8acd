"""Whether a server can be reached over TLS, and when a certificate expires."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

from cryptography import x509

from fedran.federation.protocol.configuration import check_address


def why_unreachable(address: str, ca: Path, timeout: float = 3.0) -> tuple[str, str]:
    """Connect to a server and verify its certificate.

    Returns the reason of a failure and a remedy. Both are empty if there is none.
    """
    host, port = check_address(address)
    try:
        with (
            socket.create_connection((host, port), timeout=timeout) as plain,
            ssl.create_default_context(cafile=ca).wrap_socket(plain, server_hostname=host),
        ):
            return "", ""
    except socket.gaierror:
        why = f"the name {host} is not known; check `server` in site.toml and the DNS"
        remedy = "ask for a DNS entry"
    except TimeoutError:
        why = "no answer; a firewall may drop the connection"
        remedy = "ask the owners of the networks between"
    except ConnectionRefusedError:
        why = "nothing listens there; the server or its proxy may be down"
        remedy = "ask the server's owner whether both run"
    except ssl.SSLCertVerificationError as reason:
        return f"its certificate is not valid here: {reason.verify_message}", (
            "ask the server's owner for ca.crt again, or for a certificate with this name "
            "(`fedran federation renew --host NAME`)"
        )
    except ssl.SSLError as reason:
        why = f"it does not speak TLS: {reason.reason or 'unknown reason'}"
        remedy = "ask the server's owner which program listens there"
    except OSError as reason:
        why, remedy = reason.strerror or type(reason).__name__, "check the network"
    return why, f"check that {address} is right (`server` in site.toml); {remedy}"


def certificate_expiry(path: Path) -> float | None:
    """The Unix time at which a certificate expires; None if there is none that can be read."""
    try:
        return x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc.timestamp()
    except (OSError, ValueError):
        return None
