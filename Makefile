# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
TORCH ?= torch==2.13.0
SOURCES := $(shell find native src -type f -not -name '*.so' -not -path '*/__pycache__/*') CMakeLists.txt pyproject.toml
NATIVE := $(shell find native tests/native -name '*.[ch]pp' -o -name '*.def' -o -name CMakeLists.txt) CMakeLists.txt

.PHONY: demo test lint native-test bench bench-rivals clean

# Builds, traces a small training run with loader workers, and shows where its time went.
demo: $(VENV)/.torch $(VENV)/.installed
	rm -rf out/demo
	$(BIN)/python examples/demo_train.py --directory out/demo

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# The wheel, not the checkout, is what everything below uses.
$(VENV)/.installed: $(BIN)/python $(SOURCES)
	$(BIN)/python -m pip install -q ".[test,dev]"
	touch $@

$(VENV)/.torch: $(BIN)/python
	$(BIN)/python -m pip install -q $(TORCH)
	touch $@

test: $(VENV)/.torch $(VENV)/.installed lint native-test
	$(BIN)/python -m pytest

lint: $(VENV)/.installed
	$(BIN)/ruff check src tests bench
	$(BIN)/mypy

# The engine alone: plain, and under the address, undefined-behaviour and thread sanitizers.
native-test: build/native/.tested build/asan/.tested build/tsan/.tested

build/asan/.tested: SANITIZE := address,undefined
build/tsan/.tested: SANITIZE := thread

build/%/.tested: $(NATIVE) | $(VENV)/.cmake
	$(BIN)/cmake -S . -B build/$* -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN)/ninja) -DCMAKE_BUILD_TYPE=RelWithDebInfo \
	  -DDFTRACER_BUILD_TESTS=ON -DDFTRACER_BUILD_MODULE=OFF -DDFTRACER_SANITIZE=$(SANITIZE) > build-$*.log || (cat build-$*.log; false)
	rm -f build-$*.log
	$(BIN)/cmake --build build/$*
	$(BIN)/ctest --test-dir build/$* --output-on-failure -j 2
	touch $@

$(VENV)/.cmake: $(BIN)/python
	$(BIN)/python -m pip install -q cmake ninja
	touch $@

# The rivals have our import name, so they live in an environment of their own.
bench-rivals: $(BIN)/python
	$(BIN)/python -m bench.rivals

# Measures for some minutes and writes docs/performance.md.
bench: $(VENV)/.torch $(VENV)/.installed bench-rivals
	$(BIN)/python -m bench

clean:
	rm -rf build dist $(VENV)
