# Everything a developer types. Each target sets up what it needs; nothing is installed by hand.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# Tests start Python hundreds of times; whoever has switched off compiled modules would wait for that each time.
export PYTHONDONTWRITEBYTECODE =
JOBS   ?= $(shell n=$$(nproc 2>/dev/null || echo 2); echo $$((n > 3 ? 4 : n + 1)))  # tests wait for servers too

# Thousands of stories that are all slow: to collect them takes longer than to run the rest.
QUICKLY := --ignore=tests/adversity --ignore=tests/backends/test_quorum_contract.py \
           --ignore=tests/backends/test_postgres_advisory_contract.py

.PHONY: help demo test check lint bench test-all clean
.DEFAULT_GOAL := help

help:  ## what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

demo: $(VENV)/.demo  ## set up, and watch processes compete for a lock, die, stall and take over
	@$(BIN)/holdfast demo

test: $(VENV)/.test lint  ## set up, and run every check and every test
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal

check: $(VENV)/.test  ## the quick loop: lint, types, and the tests that take no real time
	$(BIN)/ruff check -q . && $(BIN)/ruff format -q --check .
	$(BIN)/python -m mypy
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -q -m "not slow" $(QUICKLY)

lint: $(VENV)/.test  ## ruff, mypy --strict, pyright
	$(BIN)/ruff check . && $(BIN)/ruff format --check .
	$(BIN)/python -m mypy
	$(BIN)/pyright

bench: $(VENV)/.bench  ## measure against bare floors and released peers: table, JSON, plot in bench/results
	$(BIN)/python -m bench

test-all:  ## the tests on every interpreter from 3.11 up that is found
	@PYTHON=$(PYTHON) ./tests/on_every_python.sh

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"

$(VENV)/.demo: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable ".[cli]"
	@touch $@

$(VENV)/.test: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable . --group test
	@touch $@ $(VENV)/.demo

$(VENV)/.bench: $(VENV)/.test
	$(BIN)/python -m pip install --quiet --group bench
	@touch $@

clean:  ## remove what was set up
	rm -rf $(VENV) .venvs .mypy_cache .ruff_cache .pytest_cache .hypothesis
