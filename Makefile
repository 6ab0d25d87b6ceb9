# `make demo` runs the main job, `make test` every check; both set up .venv by themselves.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test slow table oldest peers lint unit setup clean

demo: setup
	$(BIN)/vitdeploy demo

test: lint unit

# What takes too long for every change: large models, the oldest
# PyTorch, and (by itself) the table of families.
slow: setup oldest
	$(BIN)/python -m pytest -m slow

table: setup
	$(BIN)/python -m tools.export_table run
	$(BIN)/python -m tools.export_table render

# The oldest PyTorch and timm that pyproject.toml allows, in an environment of their own.
# PyTorch 2.8 leaves its own log file open, which is no fault of a test, and writes opsets from 18.
oldest: build/oldest/.ready
	build/oldest/bin/python -m pytest -W ignore::ResourceWarning \
	  -W ignore::pytest.PytestUnraisableExceptionWarning -p no:logging \
	  -k 'not (operators_by_opset and 17)' \
	  tests/unit/export/test_trace.py tests/unit/export/test_families.py \
	  tests/unit/models/test_plain_pooling.py

build/oldest/.ready: pyproject.toml
	$(PYTHON) -m venv build/oldest
	build/oldest/bin/python -m pip install --quiet --editable '.[cpu,torch]' pytest hypothesis \
	  torch==2.8.0 torchvision==0.23.0 timm==1.0.15
	touch $@

# Other quantizers beside this one, in an environment of their own; records there are kept.
peers: .peers/.ready
	.peers/bin/python -m tests.peers run
	.peers/bin/python -m tests.peers table

.peers/.ready: tests/peers/requirements.txt
	$(PYTHON) -m venv .peers
	.peers/bin/python -m pip install --quiet --requirement tests/peers/requirements.txt
	touch $@

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

# Folders that load runtimes into the tests' own process keep apart: native libraries of several
# pile up in one. Each worker takes whole files and computes with one thread.
APART := tests/unit/benchmarks tests/unit/calibration tests/unit/export tests/unit/training \
  'tests/unit/graph tests/unit/models' 'tests/unit/backends tests/unit/tensorrt'
TOGETHER := tests/integration tests/packaging $(filter-out \
  $(subst ',,$(APART)) %/__pycache__,$(patsubst %/,%,$(wildcard tests/unit/*/)))
WORKERS ?= $(shell $(PYTHON) -c "import os; print(min(4, max(2, os.cpu_count() or 2)))")
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m 'not slow and not gpu' \
  -n $(WORKERS) --dist loadfile --no-loadscope-reorder --max-worker-restart 0 --durations 5

unit: setup
	set -e; for folders in '$(TOGETHER)' $(APART); do $(PYTEST) $$folders; done

setup: .venv/.ready

.venv/.ready: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv .peers build dist *.egg-info artifacts report
