# Every target makes the virtual environment it needs. `make` lists the targets.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= python3
BIN := .venv/bin
VENV := .venv/.made
INV ?= inventories/prod.py
CHECKED := vllm_cluster inventories deploys tests images scripts benchmarks

help: ## Show the targets
	@grep -hE '^[a-z][a-z-]*:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | sort | expand -t 18

$(VENV): pyproject.toml requirements.lock
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed, this is " + sys.version.split()[0])'
	@# Debian leaves ensurepip out of python3, and a fresh machine has no python3-venv.
	$(PYTHON) -c 'import ensurepip' 2>/dev/null || apt-get install -y -qq python3-venv
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint requirements.lock --editable '.[dev]'
	@touch $@

venv: $(VENV) ## Make the virtual environment

plan: $(VENV) ## Show what follows from the description (INV=inventories/prod.py)
	$(BIN)/vllm-cluster plan $(INV:.py=.yaml)

deploy: $(VENV) ## Bring the hosts to a serving cluster (INV=inventories/prod.py)
	$(BIN)/pyinfra -y --fail-percent 0 $(INV) deploys/cluster.py

dry: $(VENV) ## Show what a deploy would change, and change nothing (INV=inventories/prod.py)
	$(BIN)/pyinfra --dry --diff $(INV) deploys/cluster.py

lint: $(VENV) ## Check types and style
	$(BIN)/ruff check $(wildcard $(CHECKED))
	$(BIN)/ruff format --check $(wildcard $(CHECKED))
	$(BIN)/mypy

# pytest caches the tests with their asserts rewritten; each process that finds no cache spends 7 s
# on it. Images and CI often set PYTHONDONTWRITEBYTECODE, which would keep the cache from existing.
test-unit: $(VENV) ## Run the unit tests: seconds, no root
	PYTHONDONTWRITEBYTECODE= $(BIN)/pytest -n auto --dist worksteal tests/unit

# What a change is held against every time. The rest of tests/lab is wider and slower; it has
# targets of its own, and test-lab-all runs it whole.
LAB_TESTS := $(addprefix tests/lab/test_,cluster.py flags_real_parser.py memory_vllm.py \
	lab_up_down.py secrets_lab.py storage_lab.py alignment_lab.py hosts_firewall.py)

test-lab: $(VENV) reference ## Run the tests on lab hosts that a change must pass: root, half an hour
	$(BIN)/pytest $(LAB_TESTS)

test-lab-all: $(VENV) reference ## Run every test on lab hosts: root, two hours
	$(BIN)/pytest tests/lab

test: lint test-unit test-lab ## Run lint, unit and lab tests

demo: $(VENV) ## Two hosts out of this machine, and an answer from them: root, minutes
	$(BIN)/python -m scripts.demo up

demo-down: $(VENV) ## Remove what the demo made
	$(BIN)/python -m scripts.demo down

.PHONY: help venv plan deploy dry lint test-unit test-lab test-lab-all test demo demo-down

include $(wildcard mk/*.mk)
