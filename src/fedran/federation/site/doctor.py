"""Examines a site: ``fedran federation doctor SITE``. Every problem comes with a remedy."""

from __future__ import annotations

import email.utils
import http.client
import shlex
import shutil
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fedran.federation.protocol.connection import (
    WARN_DAYS,
    certificate_expiry,
    why_unreachable,
)
from fedran.federation.protocol.identity import SiteKey, check_private
from fedran.federation.protocol.lockfile import lock_holder
from fedran.federation.protocol.logs import log_file
from fedran.federation.protocol.settings import check_address
from fedran.federation.secure.pinning import PinnedRoster, roster_fingerprint
from fedran.federation.site.check import check_task
from fedran.federation.site.report import NOT_INSTALLED, versions
from fedran.federation.site.settings import CONNECTION, SitePaths, SiteSettings
from fedran.federation.site.source import SUFFIXES, FolderSource, FunctionSource
from fedran.wire.files import read_json_object
from fedran.wire.sizes import human_bytes

MAX_SKEW = 60.0
"""Seconds between the clocks of site and server above which Flower drops messages."""
MAX_CHECKED = 5
"""Files with rows that are read, the newest ones."""
LEAST_FREE = 2**30
"""Bytes of free disk space below which there is a warning."""


@dataclass(frozen=True)
class Check:
    """One examined part."""

    name: str
    ok: bool
    text: str
    remedy: str = ""


def examine(paths: SitePaths, *, insecure: bool = False) -> list[Check]:
    """All checks of a site, in the order in which problems should be mended."""
    settings = paths.settings()
    ca = None if insecure else paths.folder / settings.ca
    found = [
        _version(),
        _key("site key", paths.folder / settings.key, SiteKey.load),
        _key("node key", paths.folder / settings.node_key, lambda p: check_private(p, "the key")),
        _data(paths, settings),
        _disk(paths),
        _dns(settings.server),
    ]
    if settings.privacy != "none":
        found.append(_roster(paths))
    if ca is not None:
        found.append(_authority(ca))
    reason, remedy = why_unreachable(settings.server, ca)
    found.append(
        Check("server", not reason, reason or f"{settings.server} answers", remedy),
    )
    if not reason:
        found.append(_clock(settings.server, ca))
    return [*found, _service(paths)]


def _version() -> Check:
    found = versions()
    if found["flwr"] == NOT_INSTALLED:
        return Check("Flower", False, NOT_INSTALLED, "pip install 'fedran[flower]'")
    return Check("Flower", True, f"flwr {found['flwr']}, fedran {found['fedran']}")


def _key(name: str, path: Path, load: Callable[[Path], object]) -> Check:
    try:
        load(path)
    except (OSError, ValueError) as reason:
        remedy = "restore the file from your backup; for a lost key, see the how-to on lost keys"
        return Check(name, False, str(reason), remedy)
    return Check(name, True, f"{path.name} can be read by its owner only")


def _data(paths: SitePaths, settings: SiteSettings) -> Check:
    try:
        if settings.folder is None:
            FunctionSource(settings.entry or "")
            return Check("data", True, f"the function {settings.entry} can be imported")
        folder = FolderSource(paths.folder / settings.folder).folder
    except (OSError, ValueError) as reason:
        return Check("data", False, str(reason), "correct `folder` or `entry` in site.toml")
    files = [p for p in folder.iterdir() if p.suffix in SUFFIXES]
    if not files:
        expected = " or ".join(f"TASK{suffix}" for suffix in SUFFIXES)
        return Check("data", False, "no file with rows", f"put {expected} into {folder}")
    newest = sorted(files, key=lambda path: path.stat().st_mtime)[-MAX_CHECKED:]
    for task in dict.fromkeys(path.stem for path in reversed(newest)):
        try:
            errors = [found.text for found in check_task(paths, task) if found.level == "error"]
        except (OSError, ValueError, ImportError) as reason:
            errors = [str(reason)]
        if errors:
            command = shlex.join(["fedran", "federation", "check", str(paths.folder), task])
            return Check("data", False, f"task {task}: {errors[0]}", f"{command} says more")
    text = f"files with rows: {len(files)}; `check` finds no error in the newest {len(newest)}"
    return Check("data", True, text)


def _roster(paths: SitePaths) -> Check:
    pinned = PinnedRoster(paths.state)
    clients = pinned.clients
    if not clients or pinned.shown not in ({}, clients):
        text = "the server shows another roster" if clients else "no roster is pinned"
        remedy = f"compare it by telephone: fedran federation roster {paths.folder}"
        return Check("roster", False, text, remedy)
    return Check("roster", True, f"{len(clients)} sites, {roster_fingerprint(clients)}")


def _service(paths: SitePaths) -> Check:
    if lock_holder(paths.folder / "log") is None:
        command = f"fedran federation client {paths.folder}"
        return Check("service", False, "the site does not run", f"start it: {command}")
    last = read_json_object(paths.state / CONNECTION)
    if last.get("connected") is False:
        remedy = f"its log says more: {log_file(paths.folder)}"
        return Check("service", False, f"the site runs. {last['state']}", remedy)
    return Check("service", True, "the site runs")


def _disk(paths: SitePaths) -> Check:
    free = shutil.disk_usage(paths.folder).free
    ok = free >= LEAST_FREE
    remedy = "" if ok else "free some space: uploads are written before they are sent"
    return Check("disk", ok, f"{human_bytes(free)} free", remedy)


def _dns(server: str) -> Check:
    host, port = check_address(server)
    try:
        found = {info[4][0] for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
    except OSError as reason:
        text = f"{host} is not known ({reason.strerror})"
        return Check("DNS", False, text, "correct `server` in site.toml, or ask for a DNS entry")
    return Check("DNS", True, f"{host} is {', '.join(sorted(map(str, found)))}")


def _authority(ca: Path) -> Check:
    expires = certificate_expiry(ca)
    if expires is None:
        remedy = "copy the server's tls/ca.crt to this file, over a channel that you trust"
        return Check("certificate", False, f"{ca.name} is missing or not a certificate", remedy)
    days = (expires - time.time()) / 86400
    remedy = "" if days > WARN_DAYS else "ask the server's owner for the new ca.crt"
    return Check("certificate", days > WARN_DAYS, f"{ca.name} expires in {days:.0f} days", remedy)


def _clock(server: str, ca: Path | None) -> Check:
    """The difference to the server's clock, from the date in an answer over HTTP."""
    host, port = check_address(server)
    connection: http.client.HTTPConnection
    if ca is None:
        connection = http.client.HTTPConnection(host, port, timeout=5)
    else:
        context = ssl.create_default_context(cafile=ca)
        connection = http.client.HTTPSConnection(host, port, timeout=5, context=context)
    try:
        connection.request("HEAD", "/")
        there = email.utils.parsedate_to_datetime(connection.getresponse().headers["Date"])
    except (OSError, http.client.HTTPException, TypeError, ValueError) as reason:
        text = f"the server's time is not known ({type(reason).__name__})"
        return Check("clock", True, text)
    finally:
        connection.close()
    skew = time.time() - there.timestamp()
    ok = abs(skew) <= MAX_SKEW
    text = f"{abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} the server"
    remedy = "" if ok else "set the clock with NTP (timedatectl set-ntp true)"
    return Check("clock", ok, text, remedy)
