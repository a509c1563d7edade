# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
# Dozens of processes import what is written here: each would compile it again.
unexport PYTHONDONTWRITEBYTECODE
BIN := $(VENV)/bin
TORCH ?= torch==2.13.0
# Many tests wait for processes that they started: more of them at once than there are cores.
TESTS_AT_ONCE ?= 5
# Packages are compiled to bytecode when they are imported: a third of the time of installing them all goes into files
# that no test imports.
INSTALL = $(BIN)/python -m pip install -q --no-compile
# uv takes half of pip's time for torch, and a tenth for two hundred packages; what it cannot install, pip does. It must be
# told where pip finds wheels on the machine itself.
UV_INSTALL = UV_FIND_LINKS="$${PIP_FIND_LINKS:-$$($(BIN)/python -m pip config get global.find-links 2> /dev/null)}" \
	$(BIN)/uv pip install --python $(BIN)/python
WHEEL := build/wheel/.built
INSTALL_WHEEL = $(UV_INSTALL) -q --reinstall --no-deps $(<D)/*.whl || $(INSTALL) --force-reinstall --no-deps $(<D)/*.whl
WERROR ?= OFF
SOURCES := $(shell find native src -type f -not -name '*.so' -not -path '*/__pycache__/*') CMakeLists.txt pyproject.toml

.PHONY: demo test test-all python-test native-test lint tidy docs fuzz chakra-descriptor bench bench-rivals clean

# Builds, traces a small training program that nobody annotated, and shows where its time went.
demo: $(BIN)/python
	@$(MAKE) --no-print-directory -j2 $(VENV)/.analysis $(WHEEL)
	@$(MAKE) --no-print-directory $(VENV)/.demo
	@echo "4/4 tracing examples/train.py"
	@rm -rf out/demo
	$(BIN)/dftracer run -o out/demo/traces --report --html out/demo/report.html -- $(BIN)/python examples/train.py

$(BIN)/python:
	@echo "1/4 an environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.torch: | $(VENV)/.build-tools
	@echo "2/4 $(TORCH) (downloaded once), and meanwhile"
	@$(UV_INSTALL) $(TORCH) || $(INSTALL) --progress-bar on $(TORCH)
	@touch $@

# The wheel, not the checkout, is what everything below uses. It is compiled while other packages are being installed,
# by the tools of this environment: pip would install them a second time for the wheel alone.
$(WHEEL): $(SOURCES) | $(VENV)/.build-tools
	@echo "3/4 compiling pydftracer (about a minute on two cores)"
	@rm -rf $(@D) && mkdir -p $(@D)
	@SKBUILD_CMAKE_DEFINE=DFTRACER_WERROR=$(WERROR) $(BIN)/python -m pip wheel -q --no-build-isolation --no-deps -w $(@D) .
	@touch $@

# Without the packages of tests and linters.
$(VENV)/.demo: $(WHEEL) | $(VENV)/.analysis
	@$(INSTALL_WHEEL)
	@touch $@

$(VENV)/.analysis: pyproject.toml | $(VENV)/.torch $(VENV)/.build-tools
	@packages=$$($(BIN)/python .ci/packages.py analysis); \
	$(UV_INSTALL) -q $$packages || $(INSTALL) $$packages
	@touch $@

$(VENV)/.installed: $(WHEEL) | $(VENV)/.packages
	$(INSTALL_WHEEL)
	touch $@ $(VENV)/.demo

# What nearly every test imports is compiled at once, on all cores: five tests that import it for the first time at the
# same moment would each compile all of it.
$(VENV)/.packages: pyproject.toml | $(VENV)/.torch $(VENV)/.build-tools
	@packages=$$($(BIN)/python .ci/packages.py test dev); echo "installing $$packages"; \
	$(UV_INSTALL) -q $$packages || $(INSTALL) $$packages
	@$(BIN)/python -m compileall -qq -j 2 -x '/(tests|testing|_vendor|f2py|distutils)/' \
	  $(foreach each,torch sympy mpmath networkx numpy polars pyarrow _pytest,$(BIN)/../lib/python3*/site-packages/$(each)) || true
	touch $@

$(VENV)/.frameworks: $(VENV)/.packages
	$(INSTALL) $$($(BIN)/python .ci/packages.py frameworks)
	touch $@

# The native tests need little, so they begin while Python's packages are being installed.
test python-test lint: WERROR = ON
test: $(VENV)/.build-tools
	@$(MAKE) --no-print-directory -j3 python-test native-test lint

# And what takes too long for every change: all of clang-tidy, the site, damaged input and I/O for minutes on end.
test-all: test $(VENV)/.system-all $(VENV)/.frameworks build/native/.tested tidy docs fuzz
	$(BIN)/python -m pytest -m "mirror or thorough"
	$(BIN)/python -m bench.io.soak --minutes $(MINUTES)

# None of these tests measures times: they stand each other and the native tests beside them.
python-test: $(VENV)/.installed $(VENV)/.system
	@# Keeps the rewritten assertions, which each worker would make for itself.
	@$(BIN)/python -m pytest --collect-only -q > build/collected.txt || (tail -30 build/collected.txt; false)
	$(BIN)/python tests/twice.py -n $(TESTS_AT_ONCE) --no-loadscope-reorder -m "not mirror and not thorough"

# What tests use from the system: a browser without a window for the report's page, strace for the counted truth of I/O, valgrind for
# the instruction budgets; for all of them also a Prometheus, which the dashboard and the alerts ask. Without the right
# to install them those tests say that they were skipped.
$(VENV)/.system $(VENV)/.system-all: $(BIN)/python
	@for tool in chromium-headless-shell strace valgrind $(if $(findstring all,$@),prometheus); do \
	  command -v $$tool > /dev/null && continue; \
	  [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null \
	    && apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y $$tool > /dev/null && continue; \
	  [ $$tool = chromium-headless-shell ] && [ -n "$$(which chromium chromium-browser google-chrome)" ] && continue; \
	  echo "no $$tool here, and no right to install it: the tests that need it are skipped"; \
	done
	$(if $(findstring all,$@),$(INSTALL) gcsfs==2026.8.2 gcp-storage-emulator==2026.7.19)
	touch $@

CXX_FILES := $(shell find native tests/native -name '*.cpp' -o -name '*.hpp')
# All of clang-tidy takes minutes (`make tidy`, in CI); while working, the files that are not committed as they are.
CHANGED_CXX = $(shell git diff --name-only --diff-filter=d HEAD -- 'native/*.cpp' 2> /dev/null)
TIDY = xargs -r -P 2 -n 4 sh -c '$(BIN)/clang-tidy --quiet --extra-arg=-std=c++20 --extra-arg=-Inative \
	--extra-arg=-Inative/third_party/libdeflate --extra-arg=-DDFTRACER_VERSION=\"tidy\" \
	--extra-arg=-isystem$(shell $(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("include"))') "$$@" --' tidy
# Looking for garbage, of which there is hardly any, is a third of what mypy does.
MYPY = $(BIN)/python -c 'import gc; gc.disable(); gc.enable = gc.set_threshold = lambda *_: None; \
	from mypy.__main__ import console_entry as mypy; mypy()'
lint: $(VENV)/.installed
	$(BIN)/ruff check src tests bench examples .ci
	$(BIN)/ruff format --check src tests bench examples .ci
	@$(BIN)/clang-format --dry-run -Werror $(CXX_FILES)
	@echo $(CHANGED_CXX) | $(TIDY)
	$(MYPY)

tidy: $(VENV)/.installed
	@find native -name '*.cpp' | sort | $(TIDY)

# The engine without Python, with the address and undefined-behaviour sanitizers, and with the thread sanitizer. Every
# Python test exercises it without them, so its plain build is a part of `make test-all` only.
NATIVE_SOURCES := $(shell find native tests/native -type f -not -path 'native/module/*') CMakeLists.txt
NATIVE_BUILD = $(BIN)/cmake -S . -B $(@D) -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja \
	-DDFTRACER_BUILD_TESTS=ON -DDFTRACER_BUILD_MODULE=OFF -DDFTRACER_WERROR=ON
# Compiling takes longer than running, except with the thread sanitizer.
SANITIZED = -DCMAKE_BUILD_TYPE=Debug "-DCMAKE_CXX_FLAGS_DEBUG=$(1)"
# Without make's flags, ninja does not look for a job server that it could not use. Nice, so that the Python tests, which
# wait for processes and leave gaps, begin as early as they can; this fills the gaps.
NATIVE_RUN = MAKEFLAGS= nice -n 5 $(BIN)/cmake --build $(@D) \
	&& nice -n 5 $(BIN)/ctest --test-dir $(@D) --output-on-failure -j2 && touch $@

native-test: build/asan/.tested build/tsan/.tested

# What builds and installs the rest.
$(VENV)/.build-tools: $(BIN)/python pyproject.toml
	@packages=$$($(BIN)/python .ci/packages.py build-system); \
	$(INSTALL) uv && $(UV_INSTALL) -q $$packages || $(INSTALL) $$packages
	@touch $@

build/native/.tested: $(VENV)/.build-tools $(NATIVE_SOURCES)
	$(NATIVE_BUILD) && $(NATIVE_RUN)

build/asan/.tested: $(VENV)/.build-tools $(NATIVE_SOURCES)
	$(NATIVE_BUILD) $(call SANITIZED,-O0) -DDFTRACER_SANITIZE=address,undefined && $(NATIVE_RUN)

build/tsan/.tested: $(VENV)/.build-tools $(NATIVE_SOURCES) | build/asan/.tested
	$(NATIVE_BUILD) $(call SANITIZED,-Og) -DDFTRACER_SANITIZE=thread && $(NATIVE_RUN)

# Damaged input for every reader, native ones with sanitizers: `make fuzz MINUTES=5`.
MINUTES ?= 5
fuzz: $(VENV)/.installed $(VENV)/.build-tools
	$(BIN)/cmake -S tests/native/fuzz -B build/fuzz -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja
	$(BIN)/cmake --build build/fuzz
	cd tests && $(abspath $(BIN))/python -m fuzz --minutes $(MINUTES) --native $(abspath build/fuzz)

# The documentation as a site in build/site. Its packages are the extra [docs] alone: the pages about the code are read
# from the sources, so nothing has to be compiled.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "build/site/index.html"

$(VENV)/.docs: $(BIN)/python pyproject.toml
	$(INSTALL) $$($(BIN)/python .ci/packages.py docs)
	touch $@

# The wire format of Chakra, compiled.
chakra-descriptor: $(VENV)/.installed
	$(BIN)/python -m grpc_tools.protoc -Isrc/dftracer/link \
	  --descriptor_set_out=src/dftracer/link/chakra.desc src/dftracer/link/chakra.proto

# The rivals have our import name, so they live in an environment of their own.
bench-rivals: $(BIN)/python
	$(BIN)/python -m bench.rivals

# Measures for some minutes and writes docs/performance.md.
bench: $(VENV)/.torch $(VENV)/.installed bench-rivals
	$(BIN)/python -m bench

clean:
	rm -rf build dist $(VENV)
