# `make test` and `make demo` each set up all they need.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Twice the cores: some tests wait for gcloud, ssh or the clock of the sandbox.
WORKERS ?= $(shell echo $$((2 * $$(getconf _NPROCESSORS_ONLN))))

.PHONY: test story tests lock test-pythons test-newest wheel simulation ci-jobs demo lint types style compiled picture docs docs-test frameworks benchmarks clean

$(VENV)/.ready: pyproject.toml requirements.txt
	.ci/environment $(VENV) dev $(PYTHON)

# Renew requirements.txt: every package of the environments in its newest version, with its hashes, for each Python and system.
lock: $(VENV)/.ready
	.ci/environment $(VENV)-lock lock $(PYTHON)
	$(BIN)/python .ci/requirements.py --build | $(VENV)-lock/bin/uv pip compile --quiet --universal --python-version 3.11 --upgrade \
	  --generate-hashes --no-annotate --no-emit-index-url --custom-compile-command 'make lock' --output-file requirements.txt \
	  --all-extras --group lock --group dist pyproject.toml -

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

# The tests leave time, so the types are checked beside them.
test: compiled
	@$(MAKE) --no-print-directory -j2 types tests

tests: style $(VENV)/.compiled-tests
	TMPDIR=$$(.ci/memory-folder) PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -W error -n $(WORKERS) --dist worksteal

# In a new environment by one process, not by each of the next command; later each compiles the few that were changed.
# Errors are left to the run of the tests, which prints them.
$(VENV)/.compiled-tests: $(VENV)/.ready
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --collect-only --quiet > /dev/null || true
	@touch $@

# A part of the tests on each other Python of this machine, and with the newest and the lowest versions of the dependencies.
test-pythons: $(VENV)/.ready
	@WORKERS=$(WORKERS) .ci/pythons

test-newest: $(VENV)/.ready
	@WORKERS=$(WORKERS) .ci/pythons newest

# Build what is published in dist/, install it in clean environments, and use it there.
wheel: $(VENV)/.ready
	.ci/dist
	.ci/wheel

# Kept jobs on a real sshd through all faults: ten minutes, more on a busy machine.
story: $(VENV)/.ready
	TMPDIR=$$(.ci/memory-folder) $(BIN)/python -m pytest tests/workers/running/story_of_a_kept_job.py

# Two thousand lives of nodes and jobs, and two hundred combinations of options for each way to request a node; `make test` runs a few.
simulation: $(VENV)/.ready
	$(BIN)/python -m benchmarks.simulation --lives 2000
	UP_TWICE_DRAWN=200 $(BIN)/python -m pytest -W error -q -n $(WORKERS) --timeout 900 tests/nodes/test_up_twice.py

# The jobs of the examples for CI systems, each until each of its ends: no node is left.
ci-jobs: compiled
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m benchmarks.ci_jobs

demo: compiled
	@PATH="$(CURDIR)/$(BIN):$$PATH" sh examples/demo.sh

picture: $(VENV)/.ready
	$(BIN)/python docs/picture.py

# The site has an environment of its own: mkdocs brings packages that the tests must not see.
$(VENV)-docs/.ready: $(VENV)/.ready
	.ci/environment $(VENV)-docs docs $(PYTHON)

# Every warning is an error. The variable silences the advertisement for the successor of the theme (kept up until May 2027).
docs: $(VENV)-docs/.ready
	NO_MKDOCS_2_WARNING=1 $(VENV)-docs/bin/mkdocs build --strict --clean

# Walks the site in headless Chromium.
docs-test: docs
	$(VENV)-docs/bin/python -m pytest -W error --confcutdir tests/browser --timeout 600 tests/browser

# JAX and Ray of PyPI on the workers of the sandbox: several slices as one job, a cluster.
frameworks: $(VENV)/.ready
	.ci/environment $(VENV)-ray ray $(PYTHON)
	TMPDIR=$$(.ci/memory-folder) $(VENV)-ray/bin/python -m pytest -W error --confcutdir tests/frameworks tests/frameworks

benchmarks: $(VENV)/.ready
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) $(VENV)-* dist site .mypy_cache .pytest_cache .ruff_cache .hypothesis
