# Everything happens in .venv, made from Python 3.11 or newer; nothing outside this folder changes.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet -c constraints.txt
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest
# Only their own tests are traced: tracing makes a test up to twice as long.
COVERED := src/fedran/core src/fedran/wire tests/core tests/wire
# Otherwise every program that a test starts compiles the package again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test test-faults lint size docs wheel pins bench bench-accuracy results clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' Makefile | sed 's/:.*##/:/' | column -t -s:

demo: .venv/bare  ## install the package without extras and run the demo
	$(BIN)/fedran demo

test: .venv/dev  ## lint, types, import contract, docs, wheel, tests, doctests, coverage
	@$(MAKE) --no-print-directory -j 2 -O wheel docs lint
	$(PYTEST) -n 2 --dist=worksteal --cov --cov-report=term --cov-fail-under=95 --doctest-modules $(COVERED)
	$(PYTEST) -n 3 --dist=worksteal --doctest-modules $(COVERED:%=--ignore=%) src tests

test-faults: .venv/dev  ## faults of a federation with real processes: about 20 minutes
	$(PYTEST) -n 2 -m faults tests/federation

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --verbose

size:  ## lines, files and words of each package beside their limits
	$(PYTHON) benchmarks/size.py

docs: .venv/docs  ## build the documentation site into site/; a broken link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

wheel: .venv/pip  ## build sdist and wheel, and try the wheel in clean environments
	$(BIN)/python tests/try_wheel.py

pins: .venv/dev  ## deploy/requirements.txt: what the server image installs, with hashes
	echo '# Made by `make pins` from pyproject.toml and constraints.txt.' > deploy/requirements.txt
	printf 'hatchling>=1.25\n' | $(BIN)/uv pip compile --quiet --generate-hashes --no-header --no-annotate \
		--no-emit-index-url --python-version 3.12 --python-platform linux --constraint constraints.txt \
		--extra flower pyproject.toml - >> deploy/requirements.txt

bench: .venv/dev  ## speed and memory beside other libraries; writes results/speed.md
	$(BIN)/python benchmarks/speed.py

bench-accuracy: .venv/dev  ## the accuracy table on CIFAR-100 features below FEDRAN_DATA, into results/
	$(BIN)/fedran bench run configs/paper/accuracy.toml --out results

results: .venv/dev  ## docs/results.md and results/report from results/*.jsonl
	$(BIN)/fedran bench report results --page docs/results.md

.venv/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fedran needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv .venv
	@touch $@

.venv/bare: .venv/pip pyproject.toml constraints.txt
	$(PIP) -e .
	@touch $@

.venv/docs: .venv/pip pyproject.toml constraints.txt
	$(PIP) -e '.[docs]'
	@touch $@ .venv/bare

.venv/dev: .venv/pip pyproject.toml constraints.txt
	$(PIP) torch==2.13.0
	$(PIP) -e '.[dev,docs,torch,onnx,efficientnet,parquet,bench,flower]'
	@touch $@ .venv/docs .venv/bare

clean:
	rm -rf .venv site dist .coverage .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
