# `make demo` runs the main job, `make test` every check; both set up .venv by themselves.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test slow table peers lint unit setup clean

demo: setup
	$(BIN)/vitdeploy demo

test: lint unit

# What takes too long for every change: large models, and the table of families.
slow: setup
	$(BIN)/python -m pytest -m slow

table: setup
	$(BIN)/python -m tools.export_table run
	$(BIN)/python -m tools.export_table render

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

unit: setup
	$(BIN)/python -m pytest -m 'not slow'

setup: .venv/.ready

.venv/.ready: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv .peers build dist *.egg-info artifacts report
