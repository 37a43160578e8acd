"""Failures of a site's work: its time limit, and what the server is told of an exception.

The work runs in the process that answers the message. If that process is killed, Flower reports it,
and the server asks again.
"""

from __future__ import annotations

import logging
import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedran.core.errors import Refused, printable
from fedran.federation.protocol.lockfile import AlreadyRunning

log = logging.getLogger(__name__)
PATH = re.compile(r"(?<![\w.])(?:~?/|[A-Za-z]:\\)\S")
"""The start of an absolute path in a text."""


class NoContribution(RuntimeError):
    """A site cannot add its rows to a sum. The text is for the server."""


class _Expired(BaseException):
    """Passes through an entry point that catches every Exception."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Refuse the work of the block when it takes longer.

    A site's work runs in the main thread, which alone receives signals.
    """

    def expire(*_: object) -> None:
        raise _Expired

    before = signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    except _Expired:
        expected = f"an upload within {seconds:g} seconds"
        hint = "the site's `seconds` sets this limit"
        raise Refused("time", expected, "none", hint=hint) from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


OURS = Refused, FileNotFoundError, AlreadyRunning, NoContribution
"""Exceptions whose text may go to the server."""


def text_for_server(
    reason: BaseException, folder: Path | None, what: str = "no upload was made"
) -> str:
    """An error as the server may see it: our own messages verbatim, others by type only.

    ``what`` begins the line in the site's log.

    Messages of third-party exceptions may contain private data, so they stay in the site's log.
    Absolute paths stay there too: they name the site's data and users.
    """
    if folder is not None and isinstance(reason, OURS):
        log.warning("%s: %s", what, reason)
        text = printable(str(reason).replace(f"{folder}{os.sep}", ""))
        if not PATH.search(text):
            return text
    else:
        log.error("%s", what, exc_info=reason)
    return f"{type(reason).__name__} at the site; its log says more"
