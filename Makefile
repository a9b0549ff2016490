# Entry points. `make help` lists them; each installs what it needs first, and only what is missing.

LEVELS ?=
STEPS ?= 1000000
SEED ?=
ONLY ?=

BIN := .venv/bin
AS_ROOT := $(shell [ "$$(id -u)" = 0 ] || echo sudo)
PACKAGES := agent cli dns driver gang netprobe

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup demo test check lint types arrows proto init simulate bench clean setup-test setup-levels

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## install what a dev cluster needs (scripts/setup says what before it does)
	@scripts/setup demo

demo: setup ## a gang of four on this machine: start, kill one, restart in place, complete, clean up
	@$(AS_ROOT) $(BIN)/astra demo

test: setup-levels ## the tests; LEVELS="core contract" runs some of them
	@LEVELS="$(LEVELS)" $(BIN)/pytest

check: lint types arrows test ## what CI runs: lint, types, arrows between the parts, all tests

lint: setup-test ## ruff: rules and format
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: setup-test ## mypy --strict over every part, its tests and the bench
	$(BIN)/mypy

arrows: setup-test ## import-linter: who may import whom
	$(BIN)/lint-imports

proto: setup-test ## make the message classes again from the .proto files
	@scripts/proto

init: ## build what runs for containers: their first process, their logger
	@scripts/build-init

simulate: setup-test ## the long simulation of the gang core; STEPS=1000000 SEED=1
	@ASTRA_SIMULATE_STEPS=$(STEPS) $(if $(SEED),ASTRA_SIMULATE_SEED=$(SEED)) $(BIN)/pytest tests/gang/core/test_simulation.py

bench: setup-test ## the figures of docs/performance.md; ONLY=slots runs one
	@$(AS_ROOT) $(BIN)/python -m bench $(ONLY)

clean: ## remove everything that was built here
	rm -rf build dist .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	rm -f agent/astra_agent/init/astra-init agent/astra_agent/init/astra-log
	find $(PACKAGES) tests bench -name __pycache__ -type d -prune -exec rm -rf {} +

setup-test:
	@scripts/setup test

# The frameworks are gigabytes, and so is the machine of the level vm: they are fetched only where that level runs, and a
# level that lacks them says so itself.
setup-levels: setup-test
	@case " $(LEVELS) " in *" vm "*) scripts/setup vm || echo "The level vm goes without." ;; esac
	@case " $(LEVELS) " in *" frameworks "*|"  ") scripts/setup frameworks || echo "The level frameworks goes without." ;; esac
