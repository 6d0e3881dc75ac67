# Everything a newcomer or CI runs. Needs python3 with venv, g++ and make; nothing else of the machine's.
#
#   make demo        fxpool doctor, then GPT-2 and BERT beside stock Inductor, a few minutes
#   make doctor      whether all that fxpool needs is here, ten seconds
#   make test        the first tier of tests, ten minutes on two cores; AREA=pool takes one folder of tests
#   make test-all    both tiers; SHARD=1/4 takes the first of four parts
#   make lint        ruff, and mypy --strict on package, tests, benchmarks, docs/ and examples
#   make hunt        3,000 programs changed in one thing; HUNT="--cases 200 --seed 3 --kinds use_*" narrows it
#   make conformance what stock Inductor can and fxpool can't: programs, torch's operators, models; hours;
#                    CONFORMANCE="--sweeps programs --only 'hop*'" narrows it
#   make without     takes each system of docs/architecture/systems.md out and sees that its tests fail; half an hour;
#                    WITHOUT="--rows 4,5" narrows it
#   make chaos       300 kills, 20,000 malformed frames, 200 clients for ten minutes, hosts short of something; half an
#                    hour; CHAOS="--parts kills --kills 20" narrows it
#   make first-day   a new user's environments, one small program each; FIRST_DAY="--rows 'HOME*'" narrows it
#   make bench       the paired benchmarks; BENCH="--rows S1 --pairs 3" narrows them
#   make docs        the documentation site, in build/site; a broken link is an error
#   make dist        sdist and wheel, in dist/, built and checked as a release is
#   make compat      the quick tests with another torch, in .compat/: make compat TORCH=2.15.0
#   make compat-report   which private names of torch's are used, and how they differ between the releases in .compat/
#
# VENV=/somewhere/else takes another environment, PYTHON=python3.12 another interpreter to make it with, JOBS=1 runs the
# tests one after another.

PYTHON ?= python3
VENV ?= .venv
# Test processes at once; most tests wait for a compile in another process for half of their time.
JOBS ?= 2
AREA ?=
SHARD ?=
# The release that the figures in bench/RESULTS.md were measured with.
TORCH ?= 2.13.0
BENCH ?=
HUNT ?=
CONFORMANCE ?=
WITHOUT ?=
FIRST_DAY ?=
CHAOS ?=
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.fxpool-installed
LINTERS := $(VENV)/.fxpool-linters
TRITON := $(VENV)/triton/.fxpool-installed
TORCHAO := $(VENV)/torchao/.fxpool-installed
DOCS := $(VENV)/docs/.fxpool-installed
ROWS := $(VENV)/first-day/.fxpool-installed
DIST := $(VENV)/dist/.fxpool-installed

# pip compiles to bytecode on one core, and hundreds of models that nothing here imports: half a minute of two.
define COMPILE_BYTECODE
import compileall, re, sysconfig
unused = re.compile(r"/tests?/|/testing/|/transformers/models/(?!auto|bert|gpt2|llama|resnet|t5)")
compileall.compile_dir(sysconfig.get_path("purelib"), quiet=2, workers=0, rx=unused)
endef
export COMPILE_BYTECODE

# A file's tests share a pool, so they stay together; in the order of collection, which has the long ones early.
PARALLEL = -n $(JOBS) --dist loadfile --no-loadscope-reorder
# SHARD=2/4: the second of four parts.
SPLIT = $(if $(SHARD),--splits $(lastword $(subst /, ,$(SHARD))) --group $(firstword $(subst /, ,$(SHARD))) \
  --durations-path tests/durations.json)
# Some two thousand processes import the checkout; where Python may not write bytecode, each would compile it again.
COMPILE_CHECKOUT = $(BIN)/python -m compileall -q fxpool lowering pool codecache tests bench docs

.PHONY: all browser redis demo doctor test test-all test-durations lint bench hunt conformance without first-day chaos docs dist compat compat-report clean
all: demo

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 14))' || \
	  { echo "fxpool needs Python 3.10 to 3.14; choose one with: make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
	  { echo "python3-venv is missing; on Debian and Ubuntu: apt-get install python3-venv"; exit 1; }
	@echo "making $(VENV)"
	@$(PYTHON) -m venv $(VENV)

$(INSTALLED): pyproject.toml | $(BIN)/python
	@echo "installing fxpool and what its tests, demo and benchmarks need into $(VENV); torch is large"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -e '.[test,bench]' 'torch==$(TORCH)'
	@$(BIN)/python -c "$$COMPILE_BYTECODE"
	@touch $@

$(LINTERS): $(INSTALLED)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[lint]'
	@touch $@

# Beside the environment, not in it: Dynamo imports Triton where it can, and most tests and every measurement here are
# of machines without a GPU. A torch for GPUs has brought its own.
$(TRITON): | $(INSTALLED)
	@$(BIN)/python -c 'import triton' 2>/dev/null || $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps --upgrade \
	  --target $(@D) 'triton>=3.6,<3.8'
	@mkdir -p $(@D)
	@touch $@

# Beside it as well, because transformers imports it where it can.
$(TORCHAO): | $(INSTALLED)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps --upgrade \
	  --target $(@D) 'torchao>=0.18,<0.19'
	@touch $@

# Beside it as well: what a row of first-day and the tests of trainers run in, ahead of the ordinary packages.
$(ROWS): pyproject.toml | $(INSTALLED)
	@PYTHONPATH=tests $(BIN)/python -m campaigns.first_day.packages $(@D)
	@touch $@

# An environment of its own: the site is built from the sources, without torch.
$(DOCS): docs/requirements.txt | $(BIN)/python
	@echo "installing what builds the documentation into $(@D)"
	@$(BIN)/python -m venv $(@D)
	@$(@D)/bin/python -m pip install --quiet --disable-pip-version-check -r docs/requirements.txt
	@touch $@

# As well.
$(DIST): Makefile | $(BIN)/python
	@echo "installing what builds and checks releases into $(@D)"
	@$(BIN)/python -m venv $(@D)
	@$(@D)/bin/python -m pip install --quiet --disable-pip-version-check build==1.6.1 twine==7.0.0 \
	  check-wheel-contents==0.6.3
	@touch $@

demo: doctor
	@$(BIN)/python -m fxpool demo

doctor: $(INSTALLED)
	@$(BIN)/python -m fxpool doctor

# The report of `fxpool bench` is looked at in a real browser; without one those tests are skipped.
browser:
	@command -v chromium >/dev/null && command -v chromedriver >/dev/null || \
	  { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && echo "installing Chromium" && \
	    timeout 600 sh -c 'apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium chromium-driver' >/dev/null; } || \
	  echo "Chromium is not installed (as root: apt-get install chromium chromium-driver): its tests are skipped"

# The remote cache is tested with a real server; without one those tests are skipped.
redis:
	@command -v redis-server >/dev/null || command -v valkey-server >/dev/null || \
	  { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && echo "installing Redis" && \
	    timeout 600 sh -c 'apt-get update -qq && DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get install -y -qq redis-server' >/dev/null; } || \
	  echo "Redis is not installed (as root: apt-get install redis-server): its tests are skipped"

test: $(INSTALLED) $(TRITON) browser redis
	@$(COMPILE_CHECKOUT)
	$(BIN)/python -m pytest -q -m "not slow" $(PARALLEL) tests/$(AREA)

# pytest-split cuts by the times in tests/durations.json, which `make test-durations` writes.
test-all: $(INSTALLED) $(TRITON) $(TORCHAO) $(ROWS) browser redis
	@$(COMPILE_CHECKOUT)
	$(BIN)/python -m pytest -q $(PARALLEL) $(SPLIT) tests/$(AREA)

test-durations: $(INSTALLED) $(TRITON) $(TORCHAO) $(ROWS) browser redis
	@$(COMPILE_CHECKOUT)
	$(BIN)/python -m pytest -q $(PARALLEL) --store-durations --durations-path tests/durations.json

# A folder of one run may not have two modules of one name (conftest): mypy would know only one of them.
# tests/campaigns and tests/harness are packages below tests.
CHECKED := "tests/conftest.py tests/style.py tests/campaigns tests/codecache tests/examples tests/farm tests/front tests/harness \
  tests/torch_compat" \
  "tests/measurement tests/benchmarks" tests/lowering tests/pool "bench docs" examples

# mypy's cache is of this run only: what it remembered of an earlier one has hidden errors and made some.
lint: $(LINTERS)
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	@set -e; cache=$$(mktemp -d); trap 'rm -rf "$$cache"' EXIT; \
	  export MYPYPATH=".:tests:tests/lowering"; \
	  for folders in fxpool $(CHECKED); do \
	    echo "mypy $$folders"; \
	    $(BIN)/python -m mypy --config-file pyproject.toml --cache-dir "$$cache" $$folders; \
	  done

bench: $(INSTALLED)
	$(BIN)/python bench/run.py $(BENCH)

hunt: $(INSTALLED)
	@PYTHONPATH=tests $(BIN)/python -m campaigns.hunt $(HUNT)

conformance: $(INSTALLED)
	@PYTHONPATH=tests $(BIN)/python -m campaigns.conformance $(CONFORMANCE)

without: $(INSTALLED) $(TRITON) redis
	@PYTHONPATH=tests $(BIN)/python -m campaigns.without $(WITHOUT)

chaos: $(INSTALLED)
	@PYTHONPATH=tests $(BIN)/python -m campaigns.chaos $(CHAOS)

first-day: $(INSTALLED) $(ROWS)
	@PYTHONPATH=tests $(BIN)/python -m campaigns.first_day $(FIRST_DAY)

# Pages that are made from the code come first, so that the site can't say anything else.
docs: $(DOCS)
	@$(VENV)/docs/bin/python docs/import_graph.py
	@$(VENV)/docs/bin/python docs/settings_table.py
	@$(VENV)/docs/bin/python docs/man_page.py
	NO_MKDOCS_2_WARNING=1 $(VENV)/docs/bin/python -m mkdocs build --strict
	@echo "the documentation is in build/site/index.html"

dist: $(DIST)
	@rm -rf dist
	$(VENV)/dist/bin/python -m build --quiet --outdir dist .
	$(VENV)/dist/bin/python -m twine check --strict dist/*
	$(VENV)/dist/bin/check-wheel-contents dist/*.whl

compat:
	$(MAKE) test VENV=.compat/$(TORCH) TORCH=$(TORCH)

compat-report: $(INSTALLED)
	$(BIN)/python docs/compat_report.py .compat

clean:
	rm -rf .venv build dist bench/out .mypy_cache .ruff_cache .pytest_cache *.egg-info
	find . -name __pycache__ -not -path './.git/*' -prune -exec rm -rf {} +
