# PYTHON=python3.12 make test   builds on another Python; scripts/setup.sh says what it understands.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Two more than cores: the tests on Slurm, all in one process, and many others wait for what they have started.
TEST_PROCESSES = $(shell $(BIN)/python -c "import os; print(min(8, 2 + (os.cpu_count() or 1)))")

.DEFAULT_GOAL := help
.PHONY: help setup demo demo-slurm test test-ray lint format bench oracle nightly docs clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## a virtual environment with everything below in it; nothing to do when it is there
	@PYTHON="$(PYTHON)" VENV="$(VENV)" scripts/setup.sh
	@$(BIN)/python -m compileall -q src  # with PYTHONDONTWRITEBYTECODE each process would compile it: 0.9 s an estimate

demo: setup ## estimates and a shared server, in three minutes and without a GPU
	@$(BIN)/cotenant demo

demo-slurm: setup ## the same jobs on a real Slurm, on whole GPUs and as a pack; needs root, and takes three minutes
	@scripts/install_slurm.sh
	@$(BIN)/cotenant demo --only slurm

test: setup ## the whole test suite
	@$(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist loadfile

test-ray: setup ## the tests on a real Ray; installs it into $(VENV): 80 MB to fetch, 270 MB on disk
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt 'ray>=2.40'
	@$(BIN)/python -m pytest tests/needs_ray tests/unit/ray tests/conformance

lint: setup ## ruff, mypy, and the floors between the rooms
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup ## rewrite the code in the house style
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: setup ## every benchmark in its quick form
	@set -e; for name in $$(grep -rl --include=*.py -- --quick benchmarks | grep -v /_lib/ | sort | sed 's,/,.,g; s,\.py$$,,'); do \
		echo "== $$name"; $(BIN)/python -m $$name --quick; done

# COTENANT_CUDA_PYTHON=VENV/bin/python has a CUDA build of torch 2.8 or newer, torchvision, timm and transformers (5 GB).
oracle: setup ## estimates beside PyTorch's CUDA build on a null GPU; continues where it stopped, takes hours
	@$(BIN)/python -m benchmarks.estimator.oracle --python "$(COTENANT_CUDA_PYTHON)"

nightly: setup ## the tests that take minutes or a CUDA build of torch
	@COTENANT_ALL_GOLDENS=1 $(BIN)/python -m pytest tests/needs_torch/test_null_gpu_goldens.py tests/needs_cuda_build tests/needs_slurm/test_demo_on_slurm.py
	@COTENANT_SBATCH_CASES=10000 $(BIN)/python -m pytest --timeout 3600 tests/properties/test_sbatch_oracle.py tests/properties/test_sbatch_parser.py

docs: setup ## check the documentation and build the site in build/site, offline
	@$(BIN)/python -m pytest tests/unit/test_docs.py
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --site-dir build/site
	@echo "open build/site/index.html; with search: python3 -m http.server -d build/site"

clean: ## remove what the above made
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
