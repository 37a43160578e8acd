"""Medians over sites, kept up to date, equal those over all uploads."""

import statistics
import time

import pytest

pytest.importorskip("cryptography")

from hypothesis import given
from hypothesis import strategies as st

from fedran.federation.server.store.schema import Upload
from fedran.federation.server.store.state import History, Usual

numbers = st.integers(0, 5)
uploads = st.lists(st.tuples(st.sampled_from("abcd"), numbers, numbers, numbers, st.integers(1, 3)))


def upload(client, task, rows, energy=1.0, cut=0.0, sites=1, classes=(1,)):
    members = tuple((f"member-{i}", "may") for i in range(sites))
    counts = tuple((label, 1) for label in classes)
    return Upload(1, client, task, "", 0.0, 9, rows, energy, cut, 0, counts, members, 0, "")


@given(uploads, st.sampled_from(["", "a", "b", "x"]))
def test_medians_agree_with_those_over_all_uploads(sent, without):
    history, by_site = History(), {}
    for n, (site, rows, energy, cut, sites) in enumerate(sent):
        classes = (n % 3, site)
        history.add(upload(site, f"task-{n}", rows, float(energy), float(cut), sites, classes))
        figures = rows / sites, energy / max(1, rows), cut / energy if energy else 0.0
        by_site.setdefault(site, []).append((figures, classes))
    others = [found for site, found in by_site.items() if site != without]
    medians = [
        statistics.median(
            statistics.median(figures[i] for figures, _ in of_site) for of_site in others
        )
        for i in range(3)
        if others
    ]
    assert history.usual(without) == (Usual(*medians) if others else None)
    assert history.classes_of(without) == {
        c for _, classes in by_site.get(without, ()) for c in classes
    }


def test_the_cost_of_a_comparison_does_not_grow_with_the_number_of_uploads():
    """Compared within one run: 100 times the uploads must not take 20 times as long."""

    def seconds(tasks):
        history = History()
        for task in range(tasks):
            for site in range(50):
                history.add(upload(f"s{site}", f"t{task}", site + task))
        best = float("inf")
        for _ in range(5):
            start = time.perf_counter()
            for n in range(50):
                history.usual(f"s{n}")
                history.classes_of(f"s{n}")
            best = min(best, time.perf_counter() - start)
        return best

    assert seconds(400) < 20 * seconds(4)
