# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
TORCH ?= torch==2.13.0
SOURCES := $(shell find native src -type f -not -name '*.so' -not -path '*/__pycache__/*') CMakeLists.txt pyproject.toml

.PHONY: demo test lint bench bench-rivals clean

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# The wheel, not the checkout, is what everything below uses.
$(VENV)/.installed: $(BIN)/python $(SOURCES)
	$(BIN)/python -m pip install -q ".[test]"
	touch $@

$(VENV)/.torch: $(BIN)/python
	$(BIN)/python -m pip install -q $(TORCH)
	touch $@

test: $(VENV)/.torch $(VENV)/.installed native-test
	$(BIN)/python -m pytest

native-test: build/native/.tested build/asan/.tested build/tsan/.tested

# The rivals have our import name, so they live in an environment of their own.
bench-rivals: $(BIN)/python
	$(BIN)/python -m bench.rivals

# Measures for some minutes and writes docs/performance.md.
bench: $(VENV)/.torch $(VENV)/.installed bench-rivals
	$(BIN)/python -m bench

clean:
	rm -rf build dist $(VENV)
