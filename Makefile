# Everything happens in .venv, made from Python 3.11 or newer; nothing outside this folder changes.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet -c constraints.txt

.PHONY: help demo test test-faults lint bench bench-accuracy bench-precision results docs clean

help:  ## what there is to make
	@grep -E '^[a-z-]+:.*##' Makefile | sed 's/:.*##/:/' | column -t -s:

demo: .venv/bare  ## install the bare package and watch it work
	$(BIN)/fedran demo

test: lint  ## lint, types, import contract, tests, doctests, coverage
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --cov --cov-report=term --doctest-modules src tests
	$(BIN)/coverage report --include='src/fedran/core/*,src/fedran/wire/*' --fail-under=95

test-faults: .venv/dev  ## the federation's fault matrix with real processes: about 15 minutes
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m faults tests/federation/test_faults.py

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --verbose

bench: .venv/dev  ## speed and memory, peers side by side; writes results/speed.md
	$(BIN)/python benchmarks/speed.py

bench-accuracy: .venv/dev  ## the paper's accuracy table on CIFAR-100 features below FEDRAN_DATA, into results/
	$(BIN)/fedran run configs/paper/accuracy.toml --out results

results: .venv/dev  ## docs/results.md and results/report from results/*.jsonl
	$(BIN)/python benchmarks/collect.py
	$(BIN)/fedran report results

bench-precision: .venv/dev  ## how many bits an upload needs; writes results/precision.md
	$(BIN)/python benchmarks/precision.py

docs: .venv/dev  ## the documentation site, into site/
	$(PIP) -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

.venv/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fedran needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv .venv
	@touch $@

.venv/bare: .venv/pip pyproject.toml constraints.txt
	$(PIP) -e .
	@touch $@

.venv/dev: .venv/pip pyproject.toml constraints.txt
	$(PIP) torch==2.13.0
	$(PIP) -e '.[dev,torch,onnx,efficientnet,report,simulation]'
	@touch $@ .venv/bare

clean:
	rm -rf .venv site .coverage .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
