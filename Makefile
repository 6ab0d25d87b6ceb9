# `make demo` runs the main job, `make test` every check; both set up .venv by themselves.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint unit setup clean

demo: setup
	$(BIN)/vitdeploy demo

test: lint unit

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

unit: setup
	$(BIN)/python -m pytest

setup: .venv/.ready

.venv/.ready: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv build dist *.egg-info artifacts report
