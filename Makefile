# `make run` and `make test` work from a bare clone: Python >= 3.11 and make are all they need.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# One stamp per set of extras: nothing is installed again until pyproject.toml changes.
SIMULATION := $(VENV)/.installed-simulation
TEST := $(VENV)/.installed-test

.PHONY: help run test test-oldest test-deployment check docs format clean

help:  ## Show this help
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 18

run: $(SIMULATION)  ## Train the digits task privately on Ray, and compare with no privacy
	$(BIN)/flwr-sdp simulate simulations/conf/digits.toml

test: check  ## Check style and types, then run the tests
	$(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder

test-oldest: $(TEST)  ## Run the tests on the oldest Python and versions that are promised, ten minutes
	$(BIN)/python tests/check_versions.py --test oldest

test-deployment: $(TEST)  ## Run an app on a SuperLink and SuperNodes of real processes, minutes
	$(BIN)/python -m pytest -m deployment tests/deployment

check: $(TEST)  ## ruff, mypy
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/python tests/check_types.py

docs: $(TEST)  ## Build the site, build/docs/index.html; a warning is an error
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet docs build/docs

format: $(TEST)  ## Format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:  ## Remove the environment and everything that was built
	rm -rf $(VENV) build *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "flwr-sdp needs Python >= 3.11: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

$(SIMULATION): $(VENV)/bin/python pyproject.toml
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[simulation]'
	@touch $@

$(TEST): $(SIMULATION)
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[tasks,test]'
	@touch $@
