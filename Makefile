# Needs Python 3.11 and make. Every target makes the environment in .venv first.
#   make sweep      run the sweep lora_vs_full   (GRID=name for another grid, ARGS="key=value ..." for more keys)
#   make emulation  an environment for backend=emulated   (2 GB; Linux on x86-64, gcc and g++)
#   make test       format, lint, types, import rules, tests
# For contributors: make check (make test without the tests), make matrix, make format, make bench, make stress,
# make engines, make image, make machines, make emulated, make site, make docs, make dist, make lock,
# make benchmark, make clean.
PYTHON ?= python3
GRID ?= lora_vs_full
ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
COMPILED := $(VENV)/.compiled

ENGINES := $(VENV)-engines
MACHINES := $(VENV)-machines
RELEASE := $(VENV)-release
DOCS := $(VENV)-docs
# What the environments of tools contain, one file for each.
TOOLS := maintenance/environments
# The Pythons into whose empty environments `make dist` installs the wheel. One that is not here is skipped.
PYTHONS ?= python3.11 python3.12 python3.13 python3.14

.PHONY: sweep test tests matrix bench benchmark stress engines image machines emulated emulation site docs install check style types format \
	dist lock clean

sweep: $(INSTALLED) $(COMPILED)
	$(BIN)/python -m profiler.sweep +grid=$(GRID) $(ARGS)

emulation: $(INSTALLED)
	$(BIN)/python -m profiler.emulation install

# Types are checked while the tests run: without a cache, as in a new clone, mypy needs one core for most of a minute.
test: style
	$(MAKE) --no-print-directory --jobs=2 types tests

# A third process works while tests of the other two wait for time limits and for the disk.
tests: $(INSTALLED) $(COMPILED)
	$(BIN)/python -m pytest -n 3 --dist worksteal --durations=10 -m "not matrix"

# Further values, and further combinations of them: `make test` runs each kind of value, in fewer combinations.
matrix: $(INSTALLED)
	$(BIN)/python -m pytest -n 3 --dist worksteal -m matrix

check: style types

style: $(INSTALLED)
	$(BIN)/ruff format --check grpo_vram profiler maintenance tests
	$(BIN)/ruff check grpo_vram profiler maintenance tests
	$(BIN)/lint-imports --no-cache

types: $(INSTALLED)
	$(BIN)/mypy

# How long trials and estimates take on this machine; not part of the tests. With Ray in the environment of `make engines`.
bench: $(INSTALLED) $(COMPILED)
	$(if $(wildcard $(ENGINES)/.installed),$(ENGINES)/bin,$(BIN))/python -m maintenance.bench

# Who predicts memory how well: asks the predictors that run here, scores kept answers of the others, and writes
# docs/benchmark.md. ARGS="environments=FOLDER" asks the others anew, in environments that it makes there.
benchmark: $(INSTALLED)
	$(BIN)/python -m maintenance.benchmark $(ARGS)

# Random signals to all processes of running sweeps: nothing finished is lost, nothing runs twice, nothing is left. `make test`
# sends a few. First with a worker that needs no torch, then with the real one; at last a sweep is killed 50 times.
stress: $(INSTALLED)
	$(BIN)/python tests/stress/stress.py signals=1000
	$(BIN)/python tests/stress/stress.py signals=30 worker=real
	$(BIN)/python tests/stress/shared_store.py store=file kills=20
	STRESS_KILLS=50 $(BIN)/python -m pytest -s tests/execution/test_stress.py

# Sampled trials, each emulated and simulated, and what differs; with ARGS="results_dir=results/reference" the kept ones. Needs
# the environment of `python -m profiler.emulation install`, or EMULATION_PYTHON.
emulated: $(INSTALLED)
	$(BIN)/python -m maintenance.emulated $(ARGS)
	$(if $(TRL_PYTHON),$(BIN)/python -m pytest -rs tests/run/test_server_mode.py)

# A real Ray cluster on this machine, in an environment of its own: nodes, slots and the driver of a sweep are killed, two nodes
# make the same tables as one machine, and versions, GPUs and addresses are checked. Some ten minutes on two cores.
engines: $(ENGINES)/.installed
	$(ENGINES)/bin/python tests/stress/ray_cluster.py
	$(ENGINES)/bin/python tests/stress/ray_parity.py
	$(ENGINES)/bin/python -m pytest tests/cluster/test_real_ray.py

# The image of examples/machines/Dockerfile with docker, podman or buildah, or its steps without one; then what it does without
# a network. 10 GB with CUDA, and some ten minutes. ARGS="BASE=debian:13 EXTRAS=simulate,s3" for its arguments.
image:
	$(PYTHON) tests/stress/image.py $(ARGS)

# The other examples of examples/machines by the tools that read them, in an environment of its own: SkyPilot's dry run with a
# cloud that moto plays, and Kubernetes' schemas. Needs rsync. KUBERAY_CRD=FILE checks the RayJob by KubeRay's definition.
machines: $(MACHINES)/.installed
	$(MACHINES)/bin/python tests/stress/sky_dryrun.py
	$(MACHINES)/bin/python -m pytest -rs tests/test_machine_examples.py

# The sdist, and the wheel that is built from it: contents, metadata, and three commands in empty environments of each Python.
# CONSTRAINTS=constraints.txt installs torch and the other packages of the extras as well, and runs the sweep of README there.
dist: $(RELEASE)/.installed
	rm -rf dist
	$(RELEASE)/bin/check-jsonschema --builtin-schema vendor.citation-file-format CITATION.cff
	$(RELEASE)/bin/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(RELEASE)/bin/python -m build --outdir dist .
	$(RELEASE)/bin/twine check --strict dist/*
	GRPO_VRAM_DIST=dist GRPO_VRAM_PYTHONS="$(PYTHONS)" $(if $(CONSTRAINTS),GRPO_VRAM_CONSTRAINTS="$(CONSTRAINTS)") \
		$(RELEASE)/bin/python -m pytest --noconftest -rs tests/release

# After a change of pyproject.toml or constraints.txt. A new version of torch: TORCH_OF_CPU in maintenance/lock.py as well.
lock: $(INSTALLED) $(RELEASE)/.installed
	$(BIN)/python -m maintenance.lock uv=$(RELEASE)/bin/uv

# The page in the browser as static files in site/: no server, nothing uploaded. npm fetches Python for browsers, once.
# Its tests run in Chromium.
site: $(INSTALLED)
	$(BIN)/python -m maintenance.site folder=site $(ARGS)
	GRPO_VRAM_SITE=site $(BIN)/python -m pytest -rs tests/site

# The documentation as a site in docs-site/html/: the pages of docs/ by Sphinx, in an environment of its own. A dead link, also
# to a heading, is an error. Its tests read every built page, and open some in Chromium.
docs: $(INSTALLED) $(DOCS)/.installed
	$(BIN)/python -m maintenance.manual folder=docs-site
	rm -rf docs-site/html
	$(DOCS)/bin/sphinx-build --quiet --fail-on-warning --keep-going --nitpicky --builder html --conf-dir maintenance/manual \
		docs-site/sources docs-site/html
	GRPO_VRAM_DOCS=docs-site/html $(BIN)/python -m pytest -rs tests/documentation

install: $(INSTALLED) $(COMPILED)

# `constraints.txt` pins every package, so that README and results/reference/ can be reproduced. Not by requirements.lock: with
# hashes pip takes the index's torch and its CUDA libraries also where a build for the CPU is found.
# The distribution had another name before, with the same packages: it would stay next to the new one.
# pip compiles every module in one process. All cores take a third of the time, without modules that hardly any run imports.
$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip uninstall --quiet --yes --disable-pip-version-check grpo-vram-profiler
	$(BIN)/python -m pip install --no-compile --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	$(BIN)/python -m compileall -qq -j 0 -x '/(tests|transformers/models)/' $(VENV)/lib || true  # some are templates
	touch $@

# The replay of traces in C, with the compiler of this machine. Without one it is done in Python.
$(COMPILED): $(INSTALLED) profiler/allocator/traces/smallest_fit.c
	$(BIN)/python -m maintenance.environments.compiled_replay || true
	touch $@

$(ENGINES)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(ENGINES)
	$(ENGINES)/bin/python -m pip uninstall --quiet --yes --disable-pip-version-check grpo-vram-profiler
	$(ENGINES)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,ray,slurm]'
	touch $@

# The environments of tools are made anew when what they contain has changed.
$(MACHINES)/.installed: $(TOOLS)/machines.txt pyproject.toml
	$(PYTHON) -m venv --clear $(MACHINES)
	$(MACHINES)/bin/python -m pip install --quiet --disable-pip-version-check --requirement $< --editable '.[sweep]'
	touch $@

$(RELEASE)/.installed: $(TOOLS)/release.txt
	$(PYTHON) -m venv --clear $(RELEASE)
	$(RELEASE)/bin/python -m pip install --quiet --disable-pip-version-check --requirement $<
	touch $@

$(DOCS)/.installed: $(TOOLS)/docs.txt
	$(PYTHON) -m venv --clear $(DOCS)
	$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check --requirement $<
	touch $@

format: $(INSTALLED)
	$(BIN)/ruff format grpo_vram profiler maintenance tests
	$(BIN)/ruff check --fix grpo_vram profiler maintenance tests

clean:
	rm -rf $(VENV) $(ENGINES) $(MACHINES) $(RELEASE) $(DOCS)
