# Every target prepares what it needs in .venv, from plain pip; nothing is installed elsewhere.
# Choose another interpreter with: make PYTHON=python3.12 test

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=

export PIP_DISABLE_PIP_VERSION_CHECK = 1
export PIP_NO_INPUT = 1
export PIP_ROOT_USER_ACTION = ignore
# Bytecode is kept, also where the environment switches it off: the tests would be compiled anew by each process that collects them.
export PYTHONDONTWRITEBYTECODE =

# Debian's python3 cannot put pip into a virtual environment unless python3-venv is there; the outer pip then fills it from outside.
PIP = $$($(BIN)/python -m pip --version >/dev/null 2>&1 && echo $(BIN)/python -m pip || echo $(PYTHON) -m pip --python $(BIN)/python)
INSTALL = $(PIP) install --quiet --constraint constraints.txt

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo test quick test-all chaos simulate soak cron check browser screenshots format bench bench-full costs coverage docs dist clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: $(VENV)/.core ## Prepare .venv with what Duetime needs to run

demo: $(VENV)/.core ## Unpaid orders expire on time although a worker is killed; on the dashboard too: make demo ARGS=--web
	@$(if $(findstring --web,$(ARGS)),$(INSTALL) --editable '.[server]')
	@$(BIN)/duetime demo $(ARGS)

# Three tests at a time: they wait more than they compute. All processes must collect the same tests, so sets of names need the same order.
PYTEST = PYTHONHASHSEED=$$(( $$$$ % 10000 )) $(BIN)/python -m pytest -n 3 --dist worksteal

test: $(VENV)/.dev ## Run the tests (12 minutes are the goal), or some of them: make test ARGS="tests/unit -k retry"
ifeq ($(strip $(ARGS)),)
	@$(PYTEST) tests
else
	@$(BIN)/python -m pytest $(ARGS)
endif

QUICK = tests/unit tests/conformance tests/guide tests/api

quick: $(VENV)/.dev ## Run what needs no server, no second process and no patience (a minute and a half at most)
	@$(PYTEST) --scope quick -q $(QUICK) $(ARGS)

test-all: $(VENV)/.dev ## Run everything on every store, with ten times the examples (an hour)
	@DUETIME_TEST_KILLS=30 DUETIME_TEST_REQUESTS=40 $(PYTEST) --scope everything tests $(ARGS)

chaos: $(VENV)/.dev ## Kill, freeze, cut and crash for an hour on PostgreSQL; a fiftieth of it: make chaos ARGS="--scale 0.02"
	@$(BIN)/python -m tests.chaos $(ARGS)

SEED ?=

simulate: $(VENV)/.dev ## Simulate 2,000 clusters in virtual time, or one as a timeline: make simulate SEED=17
	@$(BIN)/python -m tests.simulation $(if $(SEED),--seed $(SEED)) $(ARGS)

soak: $(VENV)/.dev ## Simulate 100,000 clusters in virtual time (hours)
	@$(BIN)/python -m tests.simulation --seeds 100000 $(ARGS)

cron: $(VENV)/.dev ## Compare cron with a scan of real minutes over every change of every time zone, 2000–2040
	@$(BIN)/python -m tools.cron_scan $(ARGS)

check: $(VENV)/.dev ## Lint, format, types, layers, coverage table: all that CI checks besides the tests
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache --no-logo
	@$(BIN)/deno lint --quiet --config tools/deno.json src/duetime/web/assets
	@$(BIN)/deno check --quiet --config tools/deno.json src/duetime/web/assets/*.js
	@$(BIN)/python -m tools.coverage --check

browser: $(VENV)/.dev ## Run the tests in a real browser; installs Debian's Chromium where it may
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null \
		|| apt-get install -y -q --no-install-recommends chromium fonts-dejavu-core \
		|| { echo "Install Chromium, or name it in DUETIME_TEST_CHROMIUM"; exit 1; }
	@$(BIN)/python -m pytest -q -m browser tests/web $(ARGS)

screenshots: $(VENV)/.dev ## Take the screenshots of the dashboard that README and docs show
	@$(BIN)/python -m tools.screenshots

format: $(VENV)/.dev ## Format the code and repair what the linter can repair
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

bench: $(VENV)/.dev ## Measure throughput and lateness beside peers and bare statements
	@$(BIN)/python -m bench $(ARGS)

bench-full: $(VENV)/.dev ## The same at full size
	@$(BIN)/python -m bench --full $(ARGS)

costs: $(VENV)/.dev ## Measure what a task costs in CPU, statements and bytes; beside another checkout: make costs ARGS="--against PATH"
	@$(BIN)/python -m bench.costs $(ARGS)

coverage: $(VENV)/.dev ## Run marked tests that changed; write docs/coverage.md: which test covers which capability
	@$(BIN)/python -m tools.coverage $(ARGS)

docs: $(VENV)/.dev ## Write the documentation as a site that needs no network: build/site/index.html
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "Written: build/site/index.html"

dist: $(VENV)/.dev ## Build the packages, and run the demo from them in an empty environment
	@$(BIN)/python -m tools.dist $(ARGS)

clean: ## Remove .venv and everything else that was generated
	@rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	@find src tests bench tools -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Duetime needs Python 3.11 or newer; choose it with: make PYTHON=python3.12")'
	@echo "Creating $(VENV) …"
	@$(PYTHON) -m venv $(VENV) >/dev/null 2>&1 || { rm -rf $(VENV); $(PYTHON) -m venv --without-pip $(VENV); }

$(VENV)/.core: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing Duetime and its core dependencies into $(VENV) …"
	@$(INSTALL) --editable .
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing Duetime, its extras and the tools for development into $(VENV) …"
	@$(INSTALL) --editable '.[dev]'
	@touch $(VENV)/.core $@
