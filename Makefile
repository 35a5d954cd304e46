# `make test` and `make demo` each set up all they need.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Twice the cores: many tests wait for gcloud, ssh or the sandbox's clock.
WORKERS ?= $(shell echo $$((2 * $$(getconf _NPROCESSORS_ONLN))))

.PHONY: test compiled-tests test-pythons simulation demo lint types style compiled picture benchmarks clean

$(VENV)/.ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

lint: types style

types: $(VENV)/.ready
	$(BIN)/mypy

style: $(VENV)/.ready
	$(BIN)/ruff check --quiet .
	$(BIN)/ruff format --quiet --check .
	$(BIN)/lint-imports --no-cache > /dev/null || $(BIN)/lint-imports --no-cache

# Stories and gcloud start hundreds of programs: compiled once, also where the environment keeps Python from doing it.
compiled: $(VENV)/.ready
	@$(BIN)/python -m compileall -q src

# mypy uses one core, so all else is done beside it; the tests are compiled by one process, not by each of the next command.
test: compiled
	@$(MAKE) --no-print-directory -j2 types compiled-tests style
	TMPDIR=$$(.ci/memory-folder) PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -W error -n $(WORKERS) --dist worksteal

# Errors are left to the run of the tests, which prints them.
compiled-tests: $(VENV)/.ready
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --collect-only --quiet > /dev/null || true

# A part of the tests on each other Python of this machine, and with the lowest versions of the dependencies.
test-pythons: $(VENV)/.ready
	@WORKERS=$(WORKERS) .ci/pythons

# Two thousand lives of nodes, drawn at random; `make test` runs the first of them.
simulation: $(VENV)/.ready
	$(BIN)/python -m benchmarks.simulation --lives 2000

demo: compiled
	@PATH="$(CURDIR)/$(BIN):$$PATH" sh examples/demo.sh

picture: $(VENV)/.ready
	$(BIN)/python docs/picture.py

benchmarks: $(VENV)/.ready
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) $(VENV)-* .mypy_cache .pytest_cache .ruff_cache .hypothesis
