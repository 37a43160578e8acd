"""The status as metrics in Prometheus' text format, for the page's path ``/metrics``."""

from __future__ import annotations

from collections.abc import Iterable

from fedran.federation.status.model import Status

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Sample = tuple[dict[str, str], float | int | None]
"""Labels and a value. A sample without a value is left out."""


def render_metrics(status: Status) -> bytes:
    """All metrics. Only sites of the roster and tasks have a line each."""
    head, sites = status.head, [site for site in status.sites if site.in_roster]
    lines: list[str] = []

    def metric(name: str, kind: str, meaning: str, samples: Iterable[Sample]) -> None:
        lines.extend((f"# HELP fedran_{name} {meaning}", f"# TYPE fedran_{name} {kind}"))
        for labels, value in samples:
            if value is not None:
                named = ",".join(f'{k}="{_escape(v)}"' for k, v in labels.items())
                shown = value if isinstance(value, int) else repr(float(value))
                lines.append(f"fedran_{name}{f'{{{named}}}' if named else ''} {shown}")

    def single(name: str, kind: str, meaning: str, value: float | int | None) -> None:
        metric(name, kind, meaning, [({}, value)])

    single("up", "gauge", "Whether the server runs.", int(status.server == "running"))
    single("nodes", "gauge", "Connected nodes.", status.nodes)
    single("uploads", "gauge", "Accepted uploads in the store.", status.records)
    single("store_bytes", "gauge", "Bytes of the store on disk.", status.disk_bytes)
    single("payload_bytes_total", "counter", "Bytes of all signed uploads.", status.payload)
    single("transport_bytes_total", "counter", "Bytes at the transport.", status.transport)
    single("quarantine", "gauge", "Uploads that wait for a person.", len(status.quarantine))
    single("open_tasks", "gauge", "Tasks that wait for uploads.", len(status.open_tasks))
    single("notes", "gauge", "Alarms and notes on the status page.", len(status.notes))
    single("head_held", "gauge", "Whether a new head is held back.", int(status.held is not None))
    expires = status.certificate_expires
    left = None if expires is None else expires - status.at
    single("certificate_seconds", "gauge", "Seconds until the certificate expires.", left)
    if head is not None:
        single("head_classes", "gauge", "Classes of the newest head.", head.classes)
        single("head_accuracy", "gauge", "Of the newest head, 0 to 1.", head.accuracy)
        single("head_timestamp_seconds", "gauge", "When it was solved.", head.at)

    def per_site(name: str, meaning: str, values: Iterable[float | int | None]) -> None:
        names = ({"site": site.client} for site in sites)
        metric(name, "gauge", meaning, zip(names, values, strict=True))

    def per_task(name: str, meaning: str, values: Iterable[int]) -> None:
        names = ({"task": task.task, "state": task.state} for task in status.tasks)
        metric(name, "gauge", meaning, zip(names, values, strict=True))

    connected = (None if s.connected is None else int(s.connected) for s in sites)
    per_site("site_connected", "Whether a node of the site is connected.", connected)
    last_seen = (site.last_seen for site in sites)
    per_site("site_last_seen_seconds", "Unix time of the site's last sign of life.", last_seen)
    per_site("site_rows", "Rows in the accepted uploads of a site.", (s.rows for s in sites))
    per_task("task_uploads", "Accepted uploads of a task.", (t.uploads for t in status.tasks))
    missing = (len(task.missing) for task in status.tasks)
    per_task("task_missing", "Sites that have not answered a task.", missing)
    return ("\n".join(lines) + "\n").encode()


def _escape(text: str) -> str:
    r"""A label's value as Prometheus reads it.

    >>> print(_escape('a"b\\'))
    a\"b\\
    """
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
