"""The status of a server as metrics in Prometheus' text format."""

from __future__ import annotations

from fedran.federation.status.model import Status

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Value = float | int | None
"""What is not known is left out."""


def render_metrics(status: Status) -> bytes:
    """All metrics. Only sites of the roster and tasks have a line each."""
    head, expires = status.head, status.certificate_expires
    sites = [(_labels(site=site.client), site) for site in status.sites if site.key]
    tasks = [(_labels(task=task.task, state=task.state), task) for task in status.tasks]
    opened = [task.opened for task in status.tasks if task.opened is not None]
    found: list[tuple[str, str, Value | list[tuple[str, Value]]]] = [
        ("up", "Whether the server runs.", status.running),
        ("status_timestamp_seconds", "When this was read.", status.at),
        ("nodes", "Connected sites.", status.connected),
        ("uploads", "Accepted uploads in the store.", status.records),
        ("store_bytes", "Bytes of the store on disk.", status.disk_bytes),
        ("disk_free_bytes", "Free bytes on the disk of the store.", status.disk_free),
        ("payload_bytes_total", "Bytes of all accepted uploads.", status.payload),
        ("transport_bytes_total", "Bytes at the transport.", status.transport or None),
        ("set_aside", "Sites and classes that do not count.", len(status.set_aside)),
        ("open_tasks", "Tasks that wait for uploads.", len(status.open_tasks)),
        ("last_task_timestamp_seconds", "When it was opened.", max(opened, default=None)),
        ("findings", "Alarms and warnings of the status.", len(status.findings)),
        ("certificate_seconds", "Until it expires.", expires - status.at if expires else None),
        ("head_classes", "Classes of the newest head.", head.classes if head else None),
        ("head_accuracy", "Of the newest head, 0 to 1.", head.accuracy if head else None),
        ("head_left_out", "Points that all others label right, 0 to 1.", status.left_out),
        ("head_timestamp_seconds", "When it was solved.", head.at if head else None),
        ("site_connected", "Whether a node is connected.", [(n, s.connected) for n, s in sites]),
        ("site_last_seen_seconds", "Its last sign of life.", [(n, s.last_seen) for n, s in sites]),
        ("site_rows", "Rows in its accepted uploads.", [(n, s.rows) for n, s in sites]),
        ("site_agreement", "Rows that others label alike.", [(n, s.agreement) for n, s in sites]),
        ("task_uploads", "Accepted uploads of a task.", [(n, t.accepted) for n, t in tasks]),
        ("task_missing", "Sites without an answer.", [(n, t.missing) for n, t in tasks]),
    ]
    lines = []
    for name, meaning, values in found:
        kind = "counter" if name.endswith("_total") else "gauge"
        lines += [f"# HELP fedran_{name} {meaning}", f"# TYPE fedran_{name} {kind}"]
        for labels, value in values if isinstance(values, list) else [("", values)]:
            if value is not None:
                shown = int(value) if isinstance(value, int) else repr(float(value))
                lines.append(f"fedran_{name}{labels} {shown}")
    return ("\n".join(lines) + "\n").encode()


def _labels(**values: str) -> str:
    r"""Labels as Prometheus reads them.

    >>> print(_labels(site='a"b\\'))
    {site="a\"b\\"}
    """
    for name, value in values.items():
        escaped = value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
        values[name] = f'{name}="{escaped}"'
    return f"{{{','.join(values.values())}}}"
