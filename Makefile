# Every target sets up what it needs. `make help` lists them.
PYTHON ?= python3.11
PARTITION ?= 2013-11-01
VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest
PARALLEL := -n 2 --dist loadfile  # files side by side; a file's own tests share what it set up

.DEFAULT_GOAL := help
.PHONY: help run test lint check ui test-services test-servers test-containers test-browser test-kills test-gpu bench lock format clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | while IFS="$$(printf '\t')" read -r name text; do printf '  make %-16s %s\n' "$$name" "$$text"; done

run: $(VENV)/installed  ## set up, then one night on real flights (PARTITION=2013-11-01); ends with the card's path
	@bin/night $(PARTITION)

test: $(VENV)/installed-dev  ## the tests (about eight minutes on two cores)
	$(PYTEST) tests $(PARALLEL) -m "not services and not containers and not browser and not kills and not gpu"

lint: $(VENV)/installed-dev  ## ruff and mypy
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

check: lint  ## ruff, mypy, fast tests
	$(PYTEST) tests $(PARALLEL) -m "not slow and not services and not containers and not browser and not kills and not gpu"

ui: $(VENV)/installed  ## Airflow on 127.0.0.1:8080 with the DAGs, the form and the cards
	@bin/ui

test-services: test-servers test-kills test-containers test-browser  ## every slow group: services of their own; root, Debian

test-servers: $(VENV)/installed-dev  ## against servers that the tests start: S3, PostgreSQL (Debian's packages: root)
	$(PYTEST) tests -m services -rs

test-kills: $(VENV)/installed-dev  ## ranks killed at random moments, twenty times (KILLS_SEED=N draws them alike)
	$(PYTEST) tests/training -m kills -s

test-containers: $(VENV)/installed-dev  ## images, compose, a night in it (starts a Docker engine; root, Debian)
	$(PYTEST) tests/services -m containers -rs

test-browser: $(VENV)/installed-dev  ## Airflow's pages in a headless Chromium
	$(PYTEST) tests/services -m browser -rs

test-gpu: $(VENV)/installed-dev  ## tests that need a CUDA device
	$(PYTEST) tests -m gpu

bench: $(VENV)/installed-dev  ## every benchmark; the last line of each is its result
	@for file in benchmarks/*.py; do echo "== $$file"; $(BIN)/python $$file || exit 1; done

lock: $(VENV)/installed-dev  ## requirements*.in -> requirements*.txt
	$(BIN)/uv pip compile -q --python-version 3.11 --no-emit-index-url requirements.in -o requirements.txt
	$(BIN)/uv pip compile -q --python-version 3.11 --no-emit-index-url requirements-dev.in -o requirements-dev.txt

format: $(VENV)/installed-dev  ## ruff's formatter
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:  ## remove the virtual environment and everything below var/
	rm -rf $(VENV) var

# uv is quick and compiles bytecode (Paddle takes 8 s longer to import without); pip serves where uv cannot.
$(VENV)/installed: requirements.txt pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is not there: install Python 3.11, or name one: make PYTHON=…"; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing requirements.txt into $(VENV) (some minutes the first time)"
	@$(BIN)/pip install -q --disable-pip-version-check uv
	@$(BIN)/uv pip install -q --python $(BIN)/python --compile-bytecode -r requirements.txt \
	  || $(BIN)/pip install -q --disable-pip-version-check -r requirements.txt
	@$(BIN)/pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/installed-dev: $(VENV)/installed requirements-dev.txt
	@echo "installing requirements-dev.txt into $(VENV)"
	@$(BIN)/uv pip install -q --python $(BIN)/python --compile-bytecode -r requirements-dev.txt \
	  || $(BIN)/pip install -q --disable-pip-version-check -r requirements-dev.txt
	@touch $@
