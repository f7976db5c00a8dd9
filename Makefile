# SPDX-License-Identifier: Apache-2.0
# On a new machine two commands do all: `make demo` and `make test`. What each needs is made first.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.NOTPARALLEL:
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules

# The host pair, named after its vLLM: a file of pins and a few facts in tests/hosts.
HOST ?= 0.16.0
KNOWN_HOSTS := $(patsubst tests/hosts/%.mk,%,$(wildcard tests/hosts/*.mk))
ifeq (,$(filter $(HOST),$(KNOWN_HOSTS)))
  $(error HOST=$(HOST) is not known; known: $(KNOWN_HOSTS))
endif
include tests/hosts/$(HOST).mk

VENV := .venv$(if $(filter-out 0.16.0,$(HOST)),-$(HOST))
BIN := $(CURDIR)/$(VENV)/bin
UV := uv==0.13.9
PYTHON := "$(BIN)/python"
PIP_INSTALL := $(PYTHON) -m pip --disable-pip-version-check install --no-deps --progress-bar off
# Not `python -m pytest`: that would put the checkout, with its folder kernels, in front of everything.
PYTEST := "$(BIN)/pytest"
MODELS := build/demo-models

# Models are local and small: more threads than one only get in each other's way, and nothing is to be fetched.
export OMP_NUM_THREADS := 1
export PYTHONUNBUFFERED := 1
export TOKENIZERS_PARALLELISM := false
export HF_HUB_OFFLINE := 1
export TRANSFORMERS_VERBOSITY := error
export VLLM_NO_USAGE_STATS := 1
export VLLM_DO_NOT_TRACK := 1

# Python sets this for its own programs on some systems; a virtual environment made under it would point elsewhere.
unexport PYTHONHOME PYTHONPATH

.PHONY: help env models test lint format test-quick test-unit test-order test-kernels test-upstream ascend-compile \
	ascend-baseline test-e2e test-hosts fuzz soak sampling acceptance demo wheel benchmark benchmark-activation docs \
	clean distclean

help: ## this list
	@echo "make TARGET [HOST=$(HOST)]       hosts: $(KNOWN_HOSTS)"
	awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  %-15s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

# ---- the environment -------------------------------------------------------------------------------------------

env: $(VENV)/made-project ## the hosts, the emulated NPU, this project and its tools (first time: 5 minutes, 9 GB)

# Prints one line for each package that pip takes up, of $(1) in all.
count_packages = { n=0; while read -r word name _; do case "$$word" in \
	Collecting | Processing) n=$$((n + 1)); printf '    %3d/%d  %s\n' "$$n" $(1) "$${name\#\#*/}" ;; \
	Installing) echo "    installing them" ;; esac; done; }
pins_in = $$(grep -c '^[a-z]' $(1))

# A Python of the version that the host's wheel is for.
version_of = $(shell $(1) -c 'import ensurepip, sys, venv; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
base_python = $(firstword $(foreach name,python$(HOST_PYTHON) python3 python,\
	$(if $(filter $(HOST_PYTHON),$(call version_of,$(name))),$(name))))

# uv links what it installs to its cache: an environment more, of this or of another host pair, takes seconds and hardly
# any disk. A mirror that pip is set up for is used here too.
MIRROR = $(or $(PIP_INDEX_URL),$(shell $(base_python) -m pip config get global.index-url 2>/dev/null))
UV_INSTALL = UV_SYSTEM_CERTS=1 $(addprefix UV_DEFAULT_INDEX=,$(MIRROR)) "$(BIN)/uv" pip install --python $(PYTHON) --no-deps
show_uv = tee "$$log" | grep -E --line-buffered '^(Downloading|Prepared|Installed)|^ *Downloading|^ *Buil(ding|t)' | sed -u 's/^ */    /'

# From scratch whenever it starts, so that neither an interrupted run nor an older list leaves anything behind.
$(VENV)/made-hosts: tests/hosts/$(HOST).txt tests/hosts/$(HOST).mk
	@python="$(base_python)"
	if [ -z "$$python" ]; then
	  echo "make env: no Python $(HOST_PYTHON) with venv and pip on PATH, and vllm-ascend for host $(HOST) has a wheel for no" \
	    "other; python3 here is $(or $(call version_of,python3),missing). Install python$(HOST_PYTHON)." >&2
	  exit 1
	fi
	if ! command -v g++ >/dev/null; then echo "make env: the emulated NPU needs a C++ compiler: install g++." >&2; exit 1; fi
	echo "==> [1/5] $(VENV) with Python $(HOST_PYTHON)"
	"$$python" -m venv --clear "$(VENV)"
	log="$(VENV)/pip.log"
	$(PIP_INSTALL) --only-binary :all: "$(UV)" >"$$log" 2>&1 || { cat "$$log" >&2; exit 1; }
	echo "==> [2/5] torch and what else the hosts run on (3 GB to fetch the first time; about 2 minutes)"
	$(UV_INSTALL) --only-binary :all: -r $< 2>&1 | $(show_uv) || { cat "$$log" >&2; exit 1; }
	echo "==> [3/5] $(HOST_VLLM) from source, for no device ($$SECONDS s so far)"
	# The setting is nobody's: it keeps this build apart from others in uv's cache.
	$(HOST_VLLM_BUILD) $(UV_INSTALL) --no-build-isolation --no-binary vllm --config-setting vllm-device=empty "$(HOST_VLLM)" \
	  2>&1 | $(show_uv) || { cat "$$log" >&2; exit 1; }
	echo "    hosts installed in $$SECONDS s"
	touch $@

$(VENV)/made-tools: tests/hosts/tools.txt $(VENV)/made-hosts
	@echo "==> [4/5] test and development tools"
	log="$(VENV)/pip.log"
	$(UV_INSTALL) --only-binary :all: --reinstall -r $< >"$$log" 2>&1 || { cat "$$log" >&2; exit 1; }
	touch $@

EMULATOR := tests/npu_emulator
$(VENV)/made-emulator: $(VENV)/made-hosts \
		$(shell find $(EMULATOR) -name build -prune -o -name tests -prune -o -name '*.py' -print -o -name '*.[ch]*' -print)
	@echo "==> [5/5] the emulated NPU (compiles C++; about 1 minute) and this project"
	log="$(VENV)/pip.log"
	TORCH_DEVICE_BACKEND_AUTOLOAD=0 $(PIP_INSTALL) --no-build-isolation ./$(EMULATOR) >"$$log" 2>&1 || { cat "$$log" >&2; exit 1; }
	touch $@

$(VENV)/made-project: pyproject.toml $(wildcard ascend_specpatch/startup/*) $(VENV)/made-tools $(VENV)/made-emulator
	@log="$(VENV)/pip.log"
	$(PIP_INSTALL) --no-build-isolation -e . >"$$log" 2>&1 || { cat "$$log" >&2; exit 1; }
	touch $@
	echo "==> $(VENV) is ready"

# vLLM's tests, which only its source distribution has. pip asks it for its version, hence the build's environment.
VLLM_SOURCE := build/$(subst ==,-,$(HOST_VLLM))
$(VLLM_SOURCE)/made: tests/hosts/$(HOST).mk | $(VENV)/made-hosts
	@mkdir -p build
	echo "==> $(HOST_VLLM): its tests (30 MB to fetch)"
	log=build/vllm-tests.log
	$(HOST_VLLM_BUILD) $(PYTHON) -m pip --disable-pip-version-check download --no-deps --no-build-isolation \
	  --progress-bar off --no-binary vllm --dest build "$(HOST_VLLM)" >"$$log" 2>&1 || { cat "$$log" >&2; exit 1; }
	tar -xzf $(VLLM_SOURCE).tar.gz -C build --no-same-owner "$(notdir $(VLLM_SOURCE))/tests"
	touch $@

# Ascend's public compilers: triton-ascend is another Triton than the hosts', under the same name.
ASCEND_VENV := .venv-ascend
$(ASCEND_VENV)/made: tests/ascend_compile/requirements.txt
	@python="$(base_python)"
	if [ -z "$$python" ]; then echo "make ascend-compile: install python$(HOST_PYTHON), with venv and pip." >&2; exit 1; fi
	echo "==> $(ASCEND_VENV) with Ascend's compilers (220 MB to fetch)"
	"$$python" -m venv --clear "$(ASCEND_VENV)"
	log="$(ASCEND_VENV)/pip.log"
	"$(ASCEND_VENV)/bin/python" -m pip --disable-pip-version-check install --no-deps --progress-bar off --only-binary :all: \
	  -r $< 2>"$$log" | $(call count_packages,$(call pins_in,$<)) || { cat "$$log" >&2; exit 1; }
	touch $@

# ---- checks ----------------------------------------------------------------------------------------------------

# The end-to-end tests that go with the quick ones, so that both of two cores have as much to do.
E2E := tests/e2e
E2E_BESIDE := $(addprefix $(E2E)/,test_import_orders.py test_ray.py test_routes.py test_sampling.py test_server_life.py \
	test_soak.py)

test: lint models ## all that CI runs, in two processes: most of the end-to-end tests in one, all else in the other
	@mkdir -p build
	log=build/test-beside.log
	{ all=0; $(MAKE) --no-print-directory --keep-going test-quick test-e2e E2E="$(E2E_BESIDE)" || all=$$?
	  $(MAKE) --no-print-directory test-hosts && [ $$all = 0 ]; } >$$log 2>&1 & beside=$$!
	end_to_end=0; $(MAKE) --no-print-directory test-e2e E2E="$(E2E) $(addprefix --ignore=,$(E2E_BESIDE))" || end_to_end=$$?
	the_rest=0; wait $$beside || the_rest=$$?
	cat $$log
	[ $$end_to_end = 0 ] && [ $$the_rest = 0 ]

models: env
	@$(PYTHON) -m tests.tiny_models --by-release .pytest_cache/d/tiny_models

test-quick: test-unit test-order test-kernels test-upstream ascend-compile ## all tests but the end-to-end ones

lint: env ## ruff (format and rules) and mypy --strict
	@echo "==> lint"
	"$(BIN)/ruff" format --check --quiet . || { echo "ruff format: run 'make format'" >&2; exit 1; }
	"$(BIN)/ruff" check .
	$(PYTHON) -m mypy --no-incremental  # the cache has both hidden and invented errors

format: env ## rewrite the sources as ruff wants them
	@"$(BIN)/ruff" check --fix --quiet . || true
	"$(BIN)/ruff" format .

test-unit: env ## the engine, the emulator, packaging, the documentation
	@echo "==> unit tests"
	$(PYTEST) tests/unit $(wildcard tests/npu_emulator/tests)

test-order: env ## import orders and processes, with small stand-ins for the hosts
	@echo "==> import orders"
	$(PYTEST) tests/order

test-kernels: env ## each kernel against its torch reference
	@$(if $(wildcard tests/kernels),echo "==> kernels"; $(PYTEST) tests/kernels)

test-upstream: env $(VLLM_SOURCE)/made ## vLLM's own tests of what the kernels replace, from its source distribution
	@echo "==> vLLM's own tests"
	$(PYTEST) tests/upstream

ASCEND_PYTEST := "$(CURDIR)/$(ASCEND_VENV)/bin/pytest" tests/ascend_compile
ascend-compile: $(ASCEND_VENV)/made ## every kernel through Ascend's public compilers (an environment of its own: 0.9 GB)
	@echo "==> Ascend's compilers"
	$(ASCEND_PYTEST) -rs

ascend-baseline: $(ASCEND_VENV)/made ## write the counts and docs/ascend_compile.md anew, after looking at what changed
	@$(ASCEND_PYTEST) --rewrite -rs

test-e2e: env ## real vLLM and vllm-ascend on the emulated NPU
	@echo "==> end to end, on vLLM $(HOST)"
	$(PYTEST) $(E2E) $(if $(findstring $(E2E_HOSTS),$(E2E)),,--ignore=$(E2E_HOSTS)) -v --durations 10

# What holds for every pair; on the first one the other end-to-end tests show it.
E2E_HOSTS := tests/e2e/test_hosts.py
OTHER_HOSTS := $(filter-out 0.16.0,$(KNOWN_HOSTS))
ASKED_HOSTS := $(if $(ALL),$(OTHER_HOSTS),$(if $(filter file,$(origin HOST)),0.18.0,$(HOST)))
test-hosts: ## what holds on every host pair, on 0.18.0 (HOST=0.17.0: on that one, ALL=1: on all but the first)
	@failed=
	for host in $(ASKED_HOSTS); do
	  $(MAKE) --no-print-directory test-e2e HOST=$$host E2E=$(E2E_HOSTS) || failed="$$failed $$host"
	done
	[ -z "$$failed" ] || { echo "make test-hosts: failed on$$failed" >&2; exit 1; }

fuzz: env ## 20,000 generated classes and 2,000 import orders of the real hosts (SEED=N repeats a run)
	@$(PYTHON) benchmarks/fuzz.py $(if $(SEED),--seed $(SEED))

soak: env ## 2,000 random requests through the engine of each method (SEED=N repeats a run; 30 minutes)
	@$(PYTHON) benchmarks/soak.py $(if $(SEED),--seed $(SEED))

sampling: env ## whether speculative sampling has plain sampling's distribution: 20,000 answers and more a method
	@$(PYTHON) benchmarks/sampling.py

# ---- the product -----------------------------------------------------------------------------------------------

# Gloo, which stands in for HCCL, greets on standard output.
QUIET := grep --line-buffered -v '^\[Gloo\]'
DEMO := examples/offline_draft_model.py --model $(MODELS)/pred --draft-model $(MODELS)/pred_draft --dtype float32 \
	--max-model-len 512 --enforce-eager
UNPATCHED := from vllm import LLM; LLM('$(MODELS)/pred', skip_tokenizer_init=True, enforce_eager=True, max_model_len=512, \
	speculative_config=dict(method='draft_model', model='$(MODELS)/pred_draft', num_speculative_tokens=3))

demo: env ## a stock vLLM script with a draft model: without the patches, then with them
	@mkdir -p build
	$(PYTHON) -m tests.tiny_models $(MODELS) pred pred_draft
	echo "==> without the patches (ASCEND_SPECPATCH=0)"
	export VLLM_LOGGING_STREAM=ext://sys.stderr
	ASCEND_SPECPATCH=0 VLLM_ENABLE_V1_MULTIPROCESSING=0 $(PYTHON) -c "$(UNPATCHED)" >build/unpatched.log 2>&1 || true
	grep -m 1 -o 'ValueError: Unknown speculative.*' build/unpatched.log || { tail -n 20 build/unpatched.log >&2; exit 1; }
	echo "==> with them"
	$(PYTHON) $(DEMO) 2>build/demo.log | $(QUIET) || { tail -n 40 build/demo.log >&2; exit 1; }
	grep -m 1 -o 'ascend-specpatch .*' build/demo.log
	echo "==> what was patched (ascend-specpatch status --import)"
	"$(BIN)/ascend-specpatch" status --import 2>>build/demo.log | $(QUIET)

wheel: env ## dist/*.whl and the source distribution
	@rm -rf dist
	$(PYTHON) -m build --no-isolation --outdir dist . | tail -n 1

benchmark: env ## what an installed but idle package costs at interpreter start (fresh environments; from the package index)
	@$(PYTHON) benchmarks/startup.py

benchmark-activation: env ## what patching adds to the start of vLLM on the emulated NPU
	@$(PYTHON) benchmarks/activation.py

acceptance: env ## docs/acceptance.md and hosts.md: drafts of hosts, patches and reference (RESUME=1 goes on after an interrupted run)
	@$(PYTHON) benchmarks/acceptance.py $(if $(RESUME),--resume)

docs: env ## draw the pictures of docs/ again
	@$(PYTHON) docs/draw.py

clean: ## what tests, builds and the demo left, but not the environments
	@rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -path './.venv*' -prune -o -name __pycache__ -type d -print0 | xargs -0 rm -rf

distclean: clean ## also the environments
	@rm -rf .venv .venv-*
