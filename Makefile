# Tasks of a checkout. They need Python 3.11 or later and make; each target creates the environment in .venv if it is missing.

PYTHON ?= python3
SPEC ?= specs/gemm/v3_double_buffer.yaml

VENV := .venv
BIN := $(VENV)/bin
DEMO := build/demo
FRAMEWORKS := $(CURDIR)/build/frameworks
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq
KNOWN := --constraint constraints.txt

FAST_TESTS := tests/core tests/hardware tests/codegen tests/kernels/test_spec_files.py tests/cli/test_variants.py tests/cli/test_bad_input.py
CI_SWEEPS := ci_gemm ci_reduction ci_conv2d

.PHONY: help demo test test-fast test-all test-hooks lint sweep-ci docs docs-serve docs-audit clean

help:
	@echo "make demo    render, compile and verify one kernel, on the GPU if there is one, else on the emulator"
	@echo "make test    run the tests: every function, a sample of its cases, and all cases of specs that changed"
	@echo "make test-fast run the tests for the edit loop; make test-all runs every case"
	@echo "make test-hooks run numba-cuda's and Triton's kernels on the emulator; Triton takes 290 MB to fetch and 1 GB of disk"
	@echo "make lint    run the linter, the type checker and the contract of layers"
	@echo "make sweep-ci verify the small sweeps on the emulator, with JUnit files in build/sweeps"
	@echo "make docs    fill the pages with the output of commands, and build the site in build/site; make docs-serve shows it"
	@echo "make docs-audit looks at every page of that site in Chromium, light, dark and as wide as a phone"
	@echo "make clean   remove the environment and everything that was generated"
	@echo
	@echo "PYTHON=python3.12 chooses the Python that makes .venv; SPEC=specs/... the kernel of the demo."

demo: $(VENV)/.installed
	@printf '\n== 1. The spec: %s\n\n' '$(SPEC)'
	@cat '$(SPEC)'
	@rm -rf $(DEMO)
	@printf '\n== 2. Rendered: specialised CUDA, of which this is the mainloop\n\n'
	@$(BIN)/gemmgen render '$(SPEC)' -o $(DEMO)
	@echo
	@sed -n '/    \/\/ Mainloop/,/^    }$$/p' $(DEMO)/*.cu
	@printf '\n== 3. Compiled by NVRTC for every architecture that the spec allows\n\n'
	@$(BIN)/gemmgen compile '$(SPEC)' --arch all
	@printf '\n== 4. Verified: every edge case, every element, against a reference\n\n'
	@$(BIN)/gemmgen verify '$(SPEC)'
	@printf '\nThe kernel is %s. Next: %s --help\n' "$$(ls $(DEMO)/*.cu)" '$(BIN)/gemmgen'

test: $(VENV)/.installed-dev
	@$(BIN)/python -m pytest -n auto --tier usual $(PYTEST_ARGUMENTS)
	@$(BIN)/python tests/changed.py

test-fast: $(VENV)/.installed-dev
	@$(BIN)/python -m pytest -n auto -q --tier fast $(FAST_TESTS) $(PYTEST_ARGUMENTS)

test-all: $(VENV)/.installed-dev
	@$(BIN)/python -m pytest -n auto --tier all $(PYTEST_ARGUMENTS)

# Triton is large and only needed here, so it is installed in a separate folder.
test-hooks: $(VENV)/.installed-dev
	@[ -d $(FRAMEWORKS)/triton ] || $(PIP) install $(KNOWN) --no-deps --target $(FRAMEWORKS) triton \
	  || $(PIP) install --no-deps --target $(FRAMEWORKS) triton
	@GEMMGEN_HOOKS=required TRITON_CACHE_DIR=$(FRAMEWORKS)/cache PYTHONPATH=$(FRAMEWORKS) \
	  $(BIN)/python -m pytest -q tests/sanitizer/test_hooks.py

lint: $(VENV)/.installed-dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

# Results of an earlier run are deleted: they record the kernels, but not the version of the code that verified them.
sweep-ci: $(VENV)/.installed
	@rm -rf build/sweeps
	@status=0; for sweep in $(CI_SWEEPS); do \
	  printf '\n== %s\n\n' "$$sweep"; \
	  $(BIN)/gemmgen sweep "$$sweep" --backend emulator --results build/sweeps/results.sqlite \
	    --export junit=build/sweeps/"$$sweep".xml || status=1; \
	done; exit $$status

# GEMMGEN_SITE_VERIFY=1 also verifies specs without a certificate, which takes about an hour.
docs: $(VENV)/.installed-docs
	@printf '\n== 1. Pages: the output blocks and pictures, made by their commands\n\n'
	@$(BIN)/python docs/generate.py
	@printf '\n== 2. Site: the gallery of all specs, the pages, and the index of the search\n\n'
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

docs-serve: $(VENV)/.installed-docs
	@NO_MKDOCS_2_WARNING=1 GEMMGEN_SITE_GALLERY=12 $(BIN)/mkdocs serve

docs-audit: $(VENV)/.installed-docs
	@$(PIP) install --editable '.[browser]'
	@$(BIN)/python docs/audit.py

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find gemmgen tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo 'gemmgen needs Python 3.11 or later; choose one with: make PYTHON=python3.12'; exit 1; }
	@$(PYTHON) -m venv $(VENV) \
	  || { rm -rf $(VENV); echo '$(PYTHON) cannot make environments; on Debian and Ubuntu: apt install python3-venv'; exit 1; }

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	@echo 'Installing gemmgen into $(VENV); only the first time takes long.'
	@$(PIP) install $(KNOWN) --editable . || { echo 'Some releases of constraints.txt are not available; installing the latest ones.'; $(PIP) install --editable .; }
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(BIN)/python
	@echo 'Installing gemmgen and its tools into $(VENV); only the first time takes long.'
	@$(PIP) install $(KNOWN) --editable '.[dev]' || { echo 'Some releases of constraints.txt are not available; installing the latest ones.'; $(PIP) install --editable '.[dev]'; }
	@touch $@ $(VENV)/.installed

$(VENV)/.installed-docs: pyproject.toml | $(BIN)/python
	@echo 'Installing gemmgen and the generator of the site into $(VENV); only the first time takes long.'
	@$(PIP) install --editable '.[docs,sass,cpu,proof]' 'nvidia-cuda-nvrtc==13.0.88'
	@touch $@ $(VENV)/.installed
