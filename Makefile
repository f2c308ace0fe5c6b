# Two commands on a machine with Python 3.11 or later and make:
#   make sweep             environment, installation, the sweep lora_vs_full   (GRID=name for another, ARGS="key=value ...")
#   make test              environment, installation, format, lint, types, import contracts, tests
# and, for whoever works on it, make bench: how long simulated trials take; make stress: a sweep killed 50 times.
PYTHON ?= python3
GRID ?= lora_vs_full
ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: sweep test bench stress install check format clean

sweep: $(INSTALLED)
	$(BIN)/python -m profiler.sweep +grid=$(GRID) $(ARGS)

test: check
	$(BIN)/python -m pytest -n 2

check: $(INSTALLED)
	$(BIN)/ruff format --check profiler maintenance tests
	$(BIN)/ruff check profiler maintenance tests
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

# Times and ratios of one run on this machine; not part of the tests.
bench: $(INSTALLED)
	$(BIN)/python -m maintenance.bench

# A sweep SIGKILLed at 50 random moments: nothing finished is lost, nobody is left. `make test` does it 4 times.
stress: $(INSTALLED)
	STRESS_KILLS=50 $(BIN)/python -m pytest -s tests/execution/test_stress.py

install: $(INSTALLED)

# `constraints.txt` pins every package, so that the figures in README and results/reference/ can be had again.
$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

format: $(INSTALLED)
	$(BIN)/ruff format profiler maintenance tests
	$(BIN)/ruff check --fix profiler maintenance tests

clean:
	rm -rf $(VENV)
