# The edges that people and CI hold on to. `make` alone says what there is.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# The torch that development and CI are pinned to. It is installed by itself first: resolved together with the rest, a
# newer torch would come along. It is the build of pip's index: PyPI's brings some 3 GB of CUDA libraries. The CPU build
# is a tenth of that: have pip's extra-index-url name PyTorch's index for the CPU.
TORCH  := torch==2.13.0

.DEFAULT_GOAL := help
.PHONY: help setup demo test format lint types tests bench sim mutants compat integrations gpu chaos clean

help:  ## show this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

# pip would compile all of torch and scikit-learn on one core, a minute, and the tests import a tenth of it. So what is
# imported is compiled then, and kept, whatever the environment says of bytecode; what most tests import, at the end of
# the setup. The pip that comes with a Python may be years old, and spend half a minute on what a new one does at once.
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check install --no-compile
unexport PYTHONDONTWRITEBYTECODE

setup: $(VENV)/.complete  ## make .venv and install everything into it

$(VENV)/.complete: pyproject.toml Makefile
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed: make setup PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade pip
	@echo 'installing $(TORCH) into $(VENV): some minutes where it brings CUDA libraries along'
	$(PIP) $(TORCH)
	@echo 'installing coordinatord and the tools for tests'
	$(PIP) --editable '.[dev]'
	$(BIN)/python -c 'import aiohttp, hypothesis, pytest, torch.distributed.run, xdist.plugin'
	touch $@

demo: setup  ## train a small network on three nodes and break things on purpose
	$(BIN)/python examples/demo.py

test: lint types tests  ## formatting, lint, strict types and all tests

format: setup  ## put the code into its format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix-only --quiet .

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: setup
	$(BIN)/mypy

# Compiled first, or each of the programs that the first tests start at one time would compile all that it imports. Two
# workers more than CI has cores: the tests take 19 minutes of CPU, and wait for as long.
tests: setup
	$(BIN)/python -m compileall -q coordinatord nodeclient workerlib
	$(BIN)/python -m pytest -n 4 --dist worksteal

BENCH := $(BIN)/python -m benchmarks
REPORTS := build/bench

bench: setup  ## time everything beside torchrun, in sizes that take a quarter of an hour; JSON goes into build/bench
	mkdir -p $(REPORTS)
	$(BENCH).rendezvous --nodes 16,128,1000 --beside c10d,etcd-v2 --beside-most 16 --json $(REPORTS)/rendezvous.json
	$(BENCH).idle --nodes 1000 --seconds 20 --json $(REPORTS)/idle.json
	$(BENCH).storm --members 500 --nodes 5000 --json $(REPORTS)/storm.json
	$(BENCH).throughput --json $(REPORTS)/throughput.json
	$(BENCH).output --lines 200000 --json $(REPORTS)/output.json
	$(BENCH).scrape --json $(REPORTS)/scrape.json
	$(BENCH).step --json $(REPORTS)/step.json
	$(BENCH).host --json $(REPORTS)/host.json
	$(BENCH).recovery --repeat 1 --json $(REPORTS)/recovery.json

SECONDS ?= 60

sim: setup  ## run histories of a simulated world that goes wrong, for SECONDS=60, or the one from SEED=
	$(BIN)/python -m tests.sim --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))

mutants: setup  ## plant bugs in the two pure machines, and see the simulated world find them
	$(BIN)/python -m tests.sim.mutants

compat: setup  ## run the suite on other versions of Python and torch; PAIR= for one, NEAR=1 for what is near torch
	$(BIN)/python -m tests.compat $(PAIR) $(if $(NEAR),--near-torch)

LIBRARIES := tests/integrations/requirements.txt
REAL      := build/integrations

integrations: $(REAL)/.complete  ## run the examples with Lightning, Hugging Face and the like, with the real libraries
	$(REAL)/bin/python -m pytest tests/integrations

$(REAL)/.complete: pyproject.toml Makefile $(LIBRARIES)
	$(PYTHON) -m venv $(REAL)
	$(REAL)/bin/pip install --quiet --disable-pip-version-check --upgrade pip
	$(REAL)/bin/pip install --quiet --disable-pip-version-check $(TORCH)
	$(REAL)/bin/pip install --quiet --disable-pip-version-check --editable . --requirement $(LIBRARIES)
	touch $@

gpu: setup  ## run what needs an NVIDIA GPU: nccl, CUDA in warm workers, the order of devices
	$(BIN)/python -m pytest tests/gpu -rs -s

chaos: setup  ## kill, stop and cut off real processes, a few hundred times
	$(BIN)/python -m benchmarks.chaos

clean:  ## remove what setup and the tests made
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
