# Two commands are enough on a fresh machine: `make run` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt
ARGS ?=

.PHONY: run test check lint types imports wheel clean

run: $(VENV)/.core  ## set up, then evolve RMSNorm on this machine's GPU, or on the embedded CPU target
	$(BIN)/evo run --operator rmsnorm $(ARGS)

test: $(VENV)/.dev  ## set up, then run all tests (those marked gpu need a device and are skipped without one)
	$(BIN)/python -m pytest -n auto --dist loadfile -m "not alone" $(ARGS)
	$(BIN)/python -m pytest -m alone $(ARGS)

check: lint types imports wheel  ## what CI does beside the tests

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

imports: $(VENV)/.dev
	$(BIN)/lint-imports

wheel: $(VENV)/.dev
	$(BIN)/python tests/wheel_check.py

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# A GPU's driver means that the CUDA compiler's wheels are wanted too.
$(VENV)/.core: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) --editable '.$(if $(wildcard /proc/driver/nvidia/version /dev/nvidiactl),[cuda],)'
	touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) --editable '.[cuda,postgres,dev]'
	touch $@ $(VENV)/.core
