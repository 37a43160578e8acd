"""Metrics of a server in Prometheus' text format."""

import re

import pytest

pytest.importorskip("flwr")

from fedran.federation.status.metrics import render_metrics
from fedran.federation.status.model import TaskStatus
from fedran.federation.status.reader import Reader
from helpers.federation.status_page import request, serving

LINE = re.compile(
    r'fedran_[a-z_]+(\{[a-z]+="(?:[^"\\\n]|\\.)*"(,[a-z]+="(?:[^"\\\n]|\\.)*")*\})? '
    r"-?[0-9.]+(e[+-]?[0-9]+)?"
)


def test_every_line_is_a_metric_of_a_declared_type(open_task):
    with serving(Reader(open_task.folder)) as server:
        code, body, headers = request(server, "/metrics")
    assert code == 200
    assert headers["Content-Type"].startswith("text/plain; version=0.0.4")
    declared = set(re.findall(r"^# TYPE (\S+) (?:gauge|counter)$", body, re.M))
    samples = [line for line in body.splitlines() if not line.startswith("#")]
    assert all(LINE.fullmatch(line) for line in samples), samples
    assert {re.match("[a-z_]+", line)[0] for line in samples} <= declared
    assert "fedran_up 1" in samples
    assert "fedran_open_tasks 1" in samples
    assert 'fedran_site_connected{site="site-1"} 1' in samples
    assert 'fedran_task_missing{task="may",state="open"} 2' in samples


def test_what_is_unknown_is_left_out_and_values_are_escaped(open_task):
    status = Reader(open_task.folder).read()
    odd = TaskStatus(**{**vars(status.tasks[0]), "state": 'a"b\\c\nd'})
    body = render_metrics(type(status)(**{**vars(status), "nodes": None, "tasks": [odd]})).decode()
    assert "\nfedran_nodes " not in body
    assert r'state="a\"b\\c\nd"' in body
