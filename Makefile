# Two commands do all the set-up: `make serve` and `make test`. The rest is for developers.

VENV := .venv
PY := $(VENV)/bin/python
MODEL ?= smollm2
PORT ?= 8000
STAMP := $(VENV)/.ready
DEV_STAMP := $(VENV)/.ready-dev
NATIVE := $(wildcard csrc/*.* csrc/*/*.* csrc/*/*/*.*)
SOURCES := $(shell find src -type f -not -name '*.pyc' -not -name '*.so')
BUILD_TOOLS := "scikit-build-core>=1.1" "nanobind>=3.1" "cmake>=3.25" ninja
INSTALL := PATH="$(abspath $(VENV))/bin:$$PATH" $(PY) -m pip install -q --no-build-isolation

# Who serves gets a plain installation, which starts faster; who develops, one that runs from src.
READY := $(if $(wildcard $(DEV_STAMP)),$(DEV_STAMP),$(STAMP))

.PHONY: setup native serve test test-models check sanitize fuzz bench clean

setup: $(READY)

$(VENV)/bin/pip:
	python3 -m venv $(VENV)
	$(PY) -m pip install -q --upgrade "pip>=25.1"

$(STAMP): pyproject.toml $(NATIVE) $(SOURCES) | $(VENV)/bin/pip
	$(PY) -m pip install -q $(BUILD_TOOLS)
	$(INSTALL) .
	touch $@

$(DEV_STAMP): pyproject.toml $(NATIVE) | $(VENV)/bin/pip
	$(PY) -m pip install -q $(BUILD_TOOLS)
	$(INSTALL) -e .
	$(PY) -m pip install -q --group dev
	touch $@

native: $(READY)

serve: $(READY)
	$(VENV)/bin/kokuban serve $(MODEL) --port $(PORT)

test: $(DEV_STAMP)
	$(PY) -m pytest

test-models: $(DEV_STAMP)
	$(PY) tools/fetch_test_models.py
	$(PY) -m pytest -m models tests/golden

check: $(DEV_STAMP)
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	$(PY) tools/check_size.py
	$(PY) tools/check_docs.py
	$(PY) tools/make_api_reference.py --check
	$(PY) tools/make_bugbank_table.py --check

sanitize: $(DEV_STAMP)
	PYTHONPATH=src $(PY) tools/sanitize.py thread
	PYTHONPATH=src $(PY) tools/sanitize.py address -- python -m benchmarks.fuzz_models

fuzz: $(DEV_STAMP)
	PYTHONPATH=src:. $(PY) -m benchmarks.fuzz

bench: $(READY)
	$(VENV)/bin/kokuban bench latency $(MODEL)

clean:
	rm -rf build $(VENV)
