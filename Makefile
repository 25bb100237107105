# Everything a developer types. Each target sets up what it needs; nothing is installed by hand.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# Tests start Python hundreds of times; where compiled modules are switched off, each start would compile them anew.
export PYTHONDONTWRITEBYTECODE =
JOBS   ?= $(shell n=$$(nproc 2>/dev/null || echo 2); echo $$((n > 8 ? 8 : n + 3)))  # tests wait for servers too

# The quick loop: folders whose tests take no real time and start no server.
QUICK := tests/contract tests/engine tests/observe tests/primitives tests/simulation tests/torture tests/test_bench.py tests/test_distribution.py tests/test_import.py tests/test_matrix.py tests/test_name.py tests/test_pages.py tests/test_secrets.py tests/test_shape.py tests/test_shape_leases.py tests/test_shape_of_names.py tests/test_shape_of_tests.py tests/test_suggest.py tests/test_waiting.py

RUFF    := $(BIN)/ruff check -q . && $(BIN)/ruff format -q --check .
MYPY    := $(BIN)/python -m mypy
PYRIGHT := $(BIN)/pyright
DOCS    := $(BIN)/python -m sphinx -E -q -W -n --keep-going -b html docs docs/_build/html

.PHONY: help demo test check lint ruff types pytest docs bench soak flaky torture test-all oldest dist release-check clean
.DEFAULT_GOAL := help

help:  ## what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

demo: $(VENV)/.demo  ## set up, and watch processes compete for a lock, die, stall and take over
	@$(BIN)/lockfast demo

test: $(VENV)/.test  ## set up, and run every check and every test
	@$(BIN)/python -m tests.side_by_side --show-last "$(RUFF)" "$(MYPY)" "$(PYRIGHT)" "$(DOCS)" \
	    "$(BIN)/python -m pytest -n $(JOBS) --dist worksteal"

pytest: $(VENV)/.test  ## every test, without lint and types
	@$(BIN)/python -m pytest -n $(JOBS) --dist worksteal

check: $(VENV)/.test  ## the quick loop: lint, types, and the tests that take no real time
	@LOCKFAST_TESTS=quick $(BIN)/python -m tests.side_by_side "$(RUFF)" "$(MYPY)" \
	    "$(BIN)/python -m pytest -n 2 --dist worksteal -m 'not slow' $(QUICK)"

types: $(VENV)/.test  ## mypy --strict alone
	@$(MYPY)

ruff: $(VENV)/.test  ## ruff alone
	@$(RUFF)

lint: $(VENV)/.test  ## ruff, mypy --strict, pyright
	@$(BIN)/python -m tests.side_by_side "$(RUFF)" "$(MYPY)" "$(PYRIGHT)"

docs: $(VENV)/.test  ## build the site in docs/_build/html; a link or a name that leads nowhere is an error
	@$(DOCS)

bench: $(VENV)/.bench .venvs/redlock-ng/.made  ## measure against bare floors and released peers: docs/benchmarks.md and bench/results
	$(BIN)/python -m bench $(BENCH)

soak: $(VENV)/.test  ## the long search: 20,000 seeds, storms of interrupts, Hypothesis at full length, every row whole
	LOCKFAST_TESTS=soak $(BIN)/python -m pytest -n $(JOBS) --dist worksteal --durations=20

flaky: $(VENV)/.test  ## all tests RUNS times, half of them beside busy loops, in random order; a table of what failed
	$(BIN)/python -m tests.flaky --runs $(or $(RUNS),10) --jobs $(JOBS)

torture: $(VENV)/.test  ## workers on KIND (redis, sqlite …) under faults for MINUTES; a table of holds, faults, violations
	$(BIN)/python -m tests.torture $(or $(KIND),redis) --minutes $(or $(MINUTES),15) $(if $(SEED),--seed $(SEED))

test-all:  ## the tests on every interpreter from 3.11 up that is found
	@PYTHON=$(PYTHON) JOBS=$(JOBS) ./tests/on_every_python.sh

# In an environment of its own: a client library has one version in each.
oldest: .venvs/oldest/.test  ## the tests of Redis, Redlock, PostgreSQL, metrics and traces with the oldest clients that pyproject.toml allows
	@.venvs/oldest/bin/python -m tests.oldest --installed
	@.venvs/oldest/bin/python -m pytest -n $(JOBS) --dist worksteal -k "redis or redlock or quorum or postgres or prometheus or otel" $(OLDEST_TESTS)

dist: $(VENV)/.dist  ## build wheel and sdist, install each into an empty environment, and use it there
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	$(BIN)/python -m twine check --strict dist/*
	$(BIN)/python -m tests.installed dist/*.whl dist/*.tar.gz

release-check: $(VENV)/.demo  ## whether this commit can be released as TAG, such as TAG=v0.1.0
	@$(BIN)/python -m tests.release $(TAG)

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"

# uv takes 6 seconds where pip takes 29; pip is for hosts on which only pip knows the way to an index.
UV := $(BIN)/uv pip install --quiet --python $(BIN)/python

$(VENV)/.demo: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable ".[cli]"
	@touch $@

$(VENV)/.test: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet uv && $(UV) --editable . --group test \
	    || $(BIN)/python -m pip install --quiet --editable . --group test
	@touch $@ $(VENV)/.demo

$(VENV)/.dist: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --group dist
	@touch $@

.venvs/oldest/.test: pyproject.toml tests/oldest.py
	$(PYTHON) -m venv .venvs/oldest
	.venvs/oldest/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	.venvs/oldest/bin/python -m pip install --quiet --editable . --group test $$($(PYTHON) -m tests.oldest)
	@touch $@

$(VENV)/.bench: $(VENV)/.test
	$(BIN)/python -m pip install --quiet --group bench
	@touch $@

# In an environment of its own: it needs an older redis-py than the other peers, and is always measured.
.venvs/redlock-ng/.made: pyproject.toml
	$(PYTHON) -m venv .venvs/redlock-ng
	.venvs/redlock-ng/bin/python -m pip install --quiet --upgrade "pip>=25.1"
	.venvs/redlock-ng/bin/python -m pip install --quiet --group bench-redlock-ng
	@touch $@

clean:  ## remove what was set up
	rm -rf $(VENV) .venvs dist docs/_build .mypy_cache .ruff_cache .pytest_cache .hypothesis
