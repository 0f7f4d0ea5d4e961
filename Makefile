# kvready: every command that a contributor needs. `make help` lists them.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:

PYTHON ?= python3
VENV := build/venv
BIN := $(VENV)/bin
ENGINE := build/engine
ENGINE_PYTHON := $(ENGINE)/bin/python
OLDER_ENGINE := build/engine-0.28
MODELS := build/models
BARE := build/bare
SEED ?= 1
SHAPE ?= full
MOVER ?= dma_per_page
DISK ?=
SOAK_SECONDS ?= 600
FUZZED := $(addprefix tests/test_,$(addsuffix .py,hostile_streams sequence vllm_events \
	vllm_versions observer_tap inventory replay_memory))
PIP_QUIET := --disable-pip-version-check -q
SOURCES := $(shell find advisor collectors kernels -name '*.py' -o -name '*.c' -o -name '*.html' -o -path '*/static/*' -type f -o -name py.typed)

.PHONY: help setup demo day test lint engine engine-demo engine-record engine-test bench bench-engine gpu-check fuzz soak page-shots generate dashboards clean

help: ## list these commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | sort | \
		awk -F'\t' '{printf "  make %-14s %s\n", $$1, $$2}'

setup: $(BIN)/.kvready ## make build/venv with everything that tests and the demo need

$(BIN)/.tools: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "error: '$(PYTHON)' is missing or older than 3.11; on Debian: apt-get install python3 (bookworm or newer), or say make PYTHON=/path/to/python3.11" >&2; exit 2; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
		echo "error: '$(PYTHON)' cannot make virtual environments; on Debian: apt-get install python3-venv" >&2; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing what constraints.txt names into $(VENV)"
	@$(BIN)/pip install $(PIP_QUIET) -c constraints.txt setuptools
	@$(BIN)/python .ci/requirements.py sidecar plots dev > $(VENV)/requirements.txt
	@$(BIN)/pip install $(PIP_QUIET) -c constraints.txt -r $(VENV)/requirements.txt
	@touch $@

# Not editable, so that tests and types are checked on what a user would install. The build folders
# go first: setuptools would install modules that are deleted here but still lie there.
$(BIN)/.kvready: $(BIN)/.tools $(SOURCES)
	@rm -rf build/lib build/bdist.* kvready.egg-info
	@$(BIN)/pip install $(PIP_QUIET) --no-deps --no-build-isolation --force-reinstall .
	@touch $@

# torch and triton, to run the GPU kernels in an interpreter and compile them ahead of time. Where the
# index offers a CPU build of torch the version in constraints.txt takes it; no GPU is needed.
$(BIN)/.gpu: $(BIN)/.tools
	@$(BIN)/python .ci/requirements.py gpu > $(VENV)/requirements-gpu.txt
	@$(BIN)/pip install $(PIP_QUIET) -c constraints.txt -r $(VENV)/requirements-gpu.txt
	@touch $@

$(BIN)/.rivals: $(BIN)/.gpu
	@$(BIN)/python .ci/requirements.py bench > $(VENV)/requirements-bench.txt
	@$(BIN)/pip install $(PIP_QUIET) -c constraints.txt -r $(VENV)/requirements-bench.txt
	@touch $@

demo: $(BIN)/.kvready ## replay the bundled recording and print what it tells
	@$(BIN)/kvready demo $(DEMO_FLAGS)

day: $(BIN)/.kvready ## a day of dedup in simulated time, from shadow to its roll-back, into build/day
	@rm -rf build/day
	@$(BIN)/python examples/policies/day.py --out build/day

test: lint $(BIN)/.gpu $(BARE)/.kvready ## lint, types, import rules and every test that needs no engine
	@$(BIN)/python -m pytest -m "not engine and not soak" -n 2 --dist loadfile

lint: $(BIN)/.kvready ## formatting, types and import rules
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy --strict -p kvready.collectors -p kvready.advisor -p kvready.kernels -p dashboards
	@$(BIN)/lint-imports
	@$(BIN)/python .ci/readme.py $(BIN)/kvready

# The base install as an engine's environment sees it: msgspec and pyzmq, nothing else.
$(BARE)/.kvready: $(BIN)/.kvready
	@test -x $(BARE)/bin/python || $(BIN)/python -m venv $(BARE)
	@$(BARE)/bin/pip install $(PIP_QUIET) -c constraints.txt setuptools msgspec pyzmq
	@rm -rf build/lib build/bdist.* kvready.egg-info
	@$(BARE)/bin/pip install $(PIP_QUIET) --no-deps --no-build-isolation --force-reinstall .
	@touch $@

engine: $(ENGINE)/.kvready $(MODELS)/.made ## install a real engine (vLLM's CPU build) and make its models

# An environment with one vLLM: its folder, its version.
define engine_environment
$(1)/.engine: examples/vllm/install_engine.py
	@test -x $(1)/bin/python || $$(PYTHON) -m venv $(1)
	@$(1)/bin/python examples/vllm/install_engine.py --version $(2)
	@touch $$@

$(1)/.kvready: $(1)/.engine $$(SOURCES)
	@$(1)/bin/python -m pip install $$(PIP_QUIET) 'setuptools>=77'
	@rm -rf build/lib build/bdist.* kvready.egg-info
	@$(1)/bin/python -m pip install $$(PIP_QUIET) --no-deps --no-build-isolation --force-reinstall .
	@touch $$@
endef
$(eval $(call engine_environment,$(ENGINE),0.32.0))
$(eval $(call engine_environment,$(OLDER_ENGINE),0.28.0))

$(MODELS)/.made: $(ENGINE)/.engine examples/vllm/make_model.py
	@$(ENGINE_PYTHON) examples/vllm/make_model.py --out $(MODELS)
	@touch $@

ATTACHED = $(ENGINE_PYTHON) examples/vllm/demo.py --kvready $(BIN)/kvready --models $(MODELS) \
	--shape $(SHAPE) --seed $(SEED) --mover $(MOVER) $(if $(DISK),--disk)
RECORDED = build/recordings/$(SHAPE)-$(SEED)-$(MOVER)$(if $(DISK),-disk).kvr

engine-demo: setup engine ## run a real engine under load, kvready attached (MOVER=interleaved, DISK=1)
	@$(ATTACHED)

engine-record: setup engine ## keep a real engine's run in build/recordings (SEED, SHAPE=long, MOVER, DISK)
	@$(ATTACHED) --recording $(RECORDED)

engine-test: setup engine $(OLDER_ENGINE)/.kvready ## the tests that need a real engine, vLLM 0.32 and 0.28
	@KVREADY_ENGINE_PYTHON=$(abspath $(ENGINE_PYTHON)) $(BIN)/python -m pytest -m engine --timeout 1800

bench: setup $(BIN)/.rivals ## benchmarks beside their rivals, as ratios, into build/bench.json
	@$(BIN)/python -m tests.bench

bench-engine: setup engine ## what being watched costs a real engine, and what the gather saves (25 minutes)
	@$(BIN)/python -m tests.bench engine

gpu-check: setup $(BIN)/.gpu ## check and time the movers of a GPU (under 4 minutes; says "not run" without one)
	@$(BIN)/python -m kvready.kernels.gpu_check $(GPU_CHECK_FLAGS)

fuzz: $(BIN)/.kvready ## long runs of the properties of streams: 10,000 hostile ones, 5,000 of each other
	@HYPOTHESIS_PROFILE=fuzz $(BIN)/python -m pytest --timeout 3600 $(FUZZED)

soak: $(BIN)/.kvready ## serve a flood for SOAK_SECONDS and watch the bounds
	@SOAK_SECONDS=$(SOAK_SECONDS) $(BIN)/python -m pytest -m soak --timeout 0

page-shots: $(BIN)/.kvready ## pictures of the page in a browser, from light to stale, into build/page-shots
	@PAGE_SHOTS=$(abspath build/page-shots) $(BIN)/python -m pytest -q tests/test_page_browser.py

generate: $(BIN)/.kvready dashboards ## write docs/*.md, the OpenAPI snapshot and the README's demo output
	@$(BIN)/python -m kvready.advisor.service.generate --docs docs --golden tests/golden
	@$(BIN)/python .ci/readme.py $(BIN)/kvready --write

dashboards: $(BIN)/.tools ## write Grafana's dashboards and its copy of the alerts
	@$(BIN)/python -m dashboards.generate

clean: ## remove everything that was built, the engine included
	rm -rf build kvready.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
