"""The terms that the sections of a page explain."""

from fedran.bench.report.pages import comparison_sections
from fedran.bench.report.section import first_terms, terms
from helpers.made_up import comparison


def test_only_terms_that_occur_are_explained():
    assert list(terms("A_T and printed")) == ["A_T", "printed"]
    assert terms("A_Total") == {}


def test_a_term_is_explained_in_the_first_section_that_uses_it():
    explained = [set(new) for _, new in first_terms(comparison_sections(comparison(seeds=(1,))))]
    assert {"A_avg", "A_T", "β"} <= explained[0]
    assert sum(map(len, explained)) == len(set().union(*explained))
