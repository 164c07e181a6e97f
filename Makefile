# Needs Python >= 3.11 and make, and for the tests g++; everything else is installed into .venv on first use.
#   make demo     train on real data through a two-process cluster, write demo_output/
#   make test     lint, types and tests, of which each value of each parameter comes at least once
#   make every-test  lint, types and all combinations of these values, before a release
#   make lint     ruff and mypy only
#   make kernels  every variant of every CUDA kernel compiled for every architecture, before a release
#   make fuzz     damaged model files and data sets for ten minutes (python -m fuzz --help for hours, and for one case)
#   make bench    the benchmarks with small sizes (see benchmarks/README.md for the full ones)

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

# An install is redone when what it depends on changes: one stamp per set of extras, keyed by pyproject.toml.
DEMO_STAMP := $(VENV)/.installed-demo
TEST_STAMP := $(VENV)/.installed-test
BENCH_STAMP := $(VENV)/.installed-bench

.PHONY: demo test every-test style types tests lint kernels fuzz bench clean

demo: $(DEMO_STAMP)
	$(BIN)/python -m benchmarks.demo

# mypy uses one core: it runs beside the tests.
test: style
	$(MAKE) --jobs=2 types tests

every-test: style types
	$(BIN)/python -m pytest -n auto

style: $(TEST_STAMP)
	$(BIN)/ruff check .

types: $(TEST_STAMP)
	$(BIN)/mypy

tests: $(TEST_STAMP)
	$(BIN)/python -m pytest -n auto --each-value

lint: style types

kernels: $(TEST_STAMP)
	DASKBOOST_EVERY_VARIANT=1 $(BIN)/python -m pytest -n auto tests/kernels/test_compile.py

fuzz: $(TEST_STAMP)
	PYTHONPATH=tests $(BIN)/python -m fuzz --seconds 600

bench: $(BENCH_STAMP)
	$(BIN)/python -m benchmarks.cpu_speed --quick
	$(BIN)/python -m benchmarks.first_use
	$(BIN)/python -m benchmarks.dask_overhead --quick
	$(BIN)/python -m benchmarks.quality --quick

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "daskboost needs Python >= 3.11: make PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(DEMO_STAMP): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[plot]'
	touch $@

$(TEST_STAMP): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	touch $@ $(DEMO_STAMP)

$(BENCH_STAMP): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[bench]'
	touch $@

clean:
	rm -rf $(VENV) demo_output fuzz_output build dist
