"""Whether a server can be reached over TLS, and when a certificate expires."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

from cryptography import x509

from fedran.federation.protocol.settings import check_address

WARN_DAYS = 30.0
"""Days before the expiry of a certificate from which on there are warnings."""


def why_unreachable(address: str, ca: Path | None, timeout: float = 3.0) -> str:
    """Connect to a server and verify its certificate. Returns the reason of a failure, or "".

    ``ca=None``: without TLS.
    """
    host, port = check_address(address)
    try:
        with socket.create_connection((host, port), timeout=timeout) as plain:
            if ca is None:
                return ""
            with ssl.create_default_context(cafile=ca).wrap_socket(plain, server_hostname=host):
                return ""
    except socket.gaierror:
        return f"the name {host} is not known; check `server` in site.toml and the DNS"
    except TimeoutError:
        return "no answer; a firewall may drop the connection"
    except ConnectionRefusedError:
        return "nothing listens there; the server or its proxy may be down"
    except ssl.SSLCertVerificationError as reason:
        return f"its certificate is not valid here: {reason.verify_message}"
    except ssl.SSLError as reason:
        return f"it does not speak TLS: {reason.reason or 'unknown reason'}"
    except OSError as reason:
        return reason.strerror or type(reason).__name__


def certificate_expiry(path: Path) -> float | None:
    """The Unix time at which a certificate expires; None if there is none that can be read."""
    try:
        return x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc.timestamp()
    except (OSError, ValueError):
        return None
