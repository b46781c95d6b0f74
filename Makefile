# The edges that people and CI hold on to. `make` without a target says what there is.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# The torch that development and CI are pinned to, built only for CPUs: the same on every machine. PyPI's build has no
# label, and brings some 3 GB of CUDA libraries along. For a host with GPUs: make setup TORCH=torch==2.13.0
TORCH  := torch==2.13.0+cpu
# PyTorch's index of builds for CPUs. One file names it: the demo's containers use it too.
CPU_INDEX := $(shell sed -n 's/^ *TORCH_INDEX_URL: *//p' deploy/compose.yaml)

.DEFAULT_GOAL := help
.PHONY: help setup demo pictures docs test quick format lint types tests long bench rivals policy sim fuzz mutants compat integrations lock audit gpu chaos release torch clean another-torch

help:  ## show this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

# pip would compile all of torch and scikit-learn on one core, a minute, and the tests import a tenth of it. So what is
# imported is compiled then, and kept, whatever the environment says of bytecode; what most tests import, at the end of
# the setup. The pip that comes with a Python may be years old, and spend half a minute on what a new one does at once.
PIP := python -m pip --quiet --disable-pip-version-check install --no-compile
unexport PYTHONDONTWRITEBYTECODE

# Torch is installed by itself: resolved together with the rest, a newer one would come along. A build that was chosen
# once stays until another one is named, which pip has to be forced to: 2.13.0+cpu will do for its 2.13.0. Whatever the
# first pip fails of, the second one fails of too, and shows it; or the build is merely in no index that pip knows.
TORCH_THERE := from importlib.metadata import version; print("torch==" + version("torch"))
define install_torch
	@there=$$($(1)/bin/python -c '$(TORCH_THERE)' 2>/dev/null); \
	  if [ "$$there" = '$(TORCH)' ]; then exit; fi; \
	  if [ '$(origin TORCH)' = file ] && [ "$${there%+*}" = '$(TORCH:+cpu=)' ]; then exit; fi; \
	  echo 'installing $(TORCH): some 200 MB, and 3 GB where it is a build for CUDA'; \
	  $(1)/bin/$(PIP) --force-reinstall '$(TORCH)' 2>$(1)/pip.log \
	  || { echo "pip's own indexes do not have it: asking $(CPU_INDEX)"; \
	    $(1)/bin/$(PIP) --force-reinstall --index-url '$(CPU_INDEX)' '$(TORCH)'; } \
	  || { echo "torch is not installed. For PyPI's build, with CUDA, add TORCH=torch==2.13.0"; exit 1; }
endef

BUILT_FOR := f"for CUDA {torch.version.cuda}" if torch.version.cuda else "for CPUs alone"

# With LOCKED=1 all of it has the versions and the hashes of this file, but for torch: see TORCH.
LOCK := requirements-dev.lock

setup: $(VENV)/.complete  ## make .venv and install everything into it: some minutes, 1.5 GB

$(VENV)/.complete: pyproject.toml Makefile
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed: make setup PYTHON=python3.11")'
	@echo 'setting up $(VENV)'
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/$(PIP) --upgrade pip
	$(call install_torch,$(VENV))
	@echo 'installing coordinatord and the tools for its tests: some 400 MB'
	$(if $(LOCKED),@$(BIN)/$(PIP) --require-hashes --no-deps --requirement $(LOCK))
	@$(BIN)/$(PIP) --editable '.[demo]' --group dev
	@$(BIN)/python -c 'import aiohttp, hypothesis, pytest, torch.distributed.run, xdist.plugin'
	@$(BIN)/python -c 'import torch; print("$(VENV) is ready, with torch", torch.__version__, $(BUILT_FOR))'
	@touch $@

# Only an exact version can be compared.
ifneq ($(and $(filter-out file,$(origin TORCH)),$(findstring ==,$(TORCH))),)
ifneq ($(shell $(BIN)/python -c '$(TORCH_THERE)' 2>/dev/null),$(TORCH))
$(VENV)/.complete: another-torch
endif
endif

demo: setup  ## train a small network on three nodes and break things on purpose
	$(BIN)/python examples/demo.py

pictures: setup  ## make the pictures of the docs from one run of the demo; needs chromium
	$(BIN)/python -m tests.support.pictures

docs: setup  ## make the site of all pages in build/site/html; a link that leads nowhere fails
	@$(BIN)/python -c 'import zensical' 2>/dev/null || $(BIN)/$(PIP) --group docs
	$(BIN)/python -m tests.support.site
	$(BIN)/zensical build --strict

# mypy keeps one core busy for most of a minute, in which the tests wait as well as compute.
test: setup  ## formatting, lint, strict types, the quick tests, and each kind of real thing once
	@$(MAKE) --no-print-directory -j 3 lint types tests

format: setup  ## put the code into its format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix-only --quiet .

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: setup
	$(BIN)/mypy

# Compiled first, or each of the programs that the first tests start at one time would compile all that it imports. Two
# workers more than CI has cores: that keeps both of them busy, for the tests wait as well as compute.
tests: setup
	$(BIN)/python -m compileall -q coordinatord nodeclient workerlib
	$(BIN)/python -m pytest -n 4 --dist worksteal

quick: setup  ## run the tests that start no program and import no torch, and a hundred simulated histories
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow and not long"
	$(BIN)/python -m pytest tests/sim/test_campaign.py -k test_every_history_keeps_the_invariants

long: setup  ## run all other tests, and a job under torchrun with a hundred restarts
	$(BIN)/python -m pytest -n 2 --dist worksteal -m long
	TORCHRUN_RESTARTS=100 $(BIN)/python -m pytest --timeout 1800 tests/nodeclient/torchrun/test_torchrun.py -k many_times

BENCH := $(BIN)/python -m benchmarks
REPORTS := build/bench

bench: setup  ## time everything beside torchrun, in sizes that take half an hour; JSON goes into build/bench
	mkdir -p $(REPORTS)
	$(BENCH).rendezvous --nodes 128,1000 --json $(REPORTS)/rendezvous.json
	$(BENCH).rendezvous --nodes 16 --repeat 1 --torch --json $(REPORTS)/torch_rendezvous.json
	$(BENCH).idle --nodes 1000 --seconds 20 --json $(REPORTS)/idle.json
	$(BENCH).storm --members 500 --nodes 5000 --json $(REPORTS)/storm.json
	$(BENCH).throughput --seconds 3 --json $(REPORTS)/throughput.json
	$(BENCH).output --lines 200000 --json $(REPORTS)/output.json
	$(BENCH).restart --repeat 3 --json $(REPORTS)/restart.json
	$(BENCH).scrape --json $(REPORTS)/scrape.json
	$(BENCH).stacks --json $(REPORTS)/stacks.json
	$(BENCH).step --json $(REPORTS)/step.json
	$(BENCH).host --repeat 2 --seconds 10 --json $(REPORTS)/host.json
	$(BENCH).recovery --repeat 1 --json $(REPORTS)/recovery.json
	$(BENCH).kept --repeat 1 --json $(REPORTS)/kept.json
	$(BENCH).kept_step --json $(REPORTS)/kept_step.json

RIVALS := build/rivals

rivals: setup $(RIVALS)/.complete  ## play one schedule of faults on this, torchrun, NVRx and torchft: half an hour
	mkdir -p $(REPORTS)
	$(BENCH).rivals --rivals $(RIVALS)/bin --json $(REPORTS)/schedule.json --svg docs/rivals.svg

$(RIVALS)/.complete: Makefile
	@$(PYTHON) -m venv $(RIVALS)
	@$(RIVALS)/bin/$(PIP) --upgrade pip
	$(call install_torch,$(RIVALS))
	@$(RIVALS)/bin/$(PIP) numpy torchft-nightly nvidia-resiliency-ext
	@touch $@

policy: setup  ## play drawn faults under this policy for failures and three others, in simulated time
	mkdir -p $(REPORTS)
	$(BENCH).policy --json $(REPORTS)/policy.json --svg docs/policy.svg

SECONDS ?= 60

sim: setup  ## run histories of a simulated world that goes wrong, for SECONDS=60, or the one from SEED=
	$(BIN)/python -m tests.sim --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))

fuzz: setup  ## play hostile and confused peers, led by coverage (atheris), for SECONDS=60; TARGET= for one of them
	@$(BIN)/python -c 'import atheris' 2>/dev/null || $(BIN)/$(PIP) --group fuzz
	$(BIN)/python -m tests.fuzz --seconds $(SECONDS) $(addprefix --target ,$(TARGET))

mutants: setup  ## plant bugs in the two pure machines, and see the simulated world find them
	$(BIN)/python -m tests.sim.mutants --record

compat: setup  ## run the suite on other versions of Python and torch; PAIR= for one, NEAR=1 for what is near torch
	$(BIN)/python -m tests.compat $(PAIR) $(if $(NEAR),--near-torch)

LIBRARIES := tests/integrations/requirements.txt
REAL      := build/integrations

integrations: $(REAL)/.complete  ## run the examples with Lightning, Hugging Face and the like, with the real libraries
	$(REAL)/bin/python -m pytest tests/integrations

$(REAL)/.complete: pyproject.toml Makefile $(LIBRARIES)
	@$(PYTHON) -m venv $(REAL)
	@$(REAL)/bin/$(PIP) --upgrade pip
	$(call install_torch,$(REAL))
	@echo 'installing the libraries: some minutes'
	@$(REAL)/bin/$(PIP) --editable . --requirement $(LIBRARIES)
	@touch $@

# What builds of torch for CUDA bring along is torch's affair, and is left out.
lock: setup  ## write requirements-dev.lock anew: what development is locked to, with hashes
	@$(BIN)/$(PIP) uv
	{ sed -n '/^#/p' $(LOCK); $(BIN)/uv pip compile pyproject.toml --extra demo --group dev \
	  --universal --python-version 3.11 --quiet --generate-hashes --no-emit-index-url --no-header --no-annotate \
	  --no-emit-package torch \
	  | awk '/^(nvidia-|cuda-|triton=)/ {skip = 1; next} /^[^ ]/ {skip = 0} !skip'; } > $(LOCK).new
	mv $(LOCK).new $(LOCK)

audit: setup  ## ask the public databases for holes in what is locked, and write build/sbom.json; CI has no way to them
	@$(PYTHON) -m venv build/audit
	@build/audit/bin/$(PIP) pip-audit
	build/audit/bin/pip-audit --strict --disable-pip --require-hashes --requirement $(LOCK)
	build/audit/bin/pip-audit --strict --disable-pip --require-hashes --requirement $(LOCK) \
	  --format cyclonedx-json --output build/sbom.json

gpu: setup  ## run what needs an NVIDIA GPU: nccl, losses and hangs of workers that share one, the order of devices
	$(BIN)/python -m pytest tests/gpu -rs -s

chaos: setup  ## kill, stop and cut off real processes, a few hundred times
	$(BIN)/python -m benchmarks.chaos
	$(BIN)/python -m benchmarks.kept_chaos
	$(BIN)/python -m benchmarks.sigterm_chaos
	$(BIN)/python -m benchmarks.standby_chaos
	$(BIN)/python -m tests.chaos.test_hostile

release: setup  ## build both packages of VERSION=, train with each, and tag it; DRY_RUN=1 does all but the tag
	.ci/release "$(VERSION)" $(if $(DRY_RUN),--dry-run)

# For .ci/release, which has made the environment VENV=.
torch:
	$(call install_torch,$(VENV))

clean:  ## remove what setup and the tests made
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
