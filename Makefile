# Two commands, on any machine with Python 3.11+ and a package registry:
#   make ablate   the main job, on data that needs no download; into runs/quickstart
#   make test     the tests; make slow the longer ones; make thorough extra checks beyond both
#   make night    what the experiments of configs/papers/full take on this machine
# Both make their own .venv (plain `make` does only that): posjax and its commands then run in it from any folder.
# Another interpreter: make PYTHON=python3.12 ablate

PYTHON ?= python3
# Python compiles each module once, and not in each of the processes that tests start.
unexport PYTHONDONTWRITEBYTECODE
# Python compiles a module when it first imports it: most are never imported.
PIP = .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile

.PHONY: install ablate night test slow thorough mutants lint types house docs

install: .venv/installed
	@echo "posjax is installed in .venv: make ablate, make test, or . .venv/bin/activate and, from any folder,"
	@echo "  python -m experiments.train --config=configs/vit.py"

ablate: .venv/installed
	.venv/bin/python -m experiments.ablate --config=configs/quickstart.py

night: .venv/installed
	.venv/bin/python -m experiments.night

test: .venv/installed-test lint
	.venv/bin/python -m pytest -n 2 --dist worksteal -m "not slow and not thorough" --ignore=tests/test_house.py

slow: .venv/installed-test
	POSJAX_TESTS=unchecked .venv/bin/python -m pytest -n 2 --dist worksteal -m "slow and not thorough"
	POSJAX_TESTS=optimised .venv/bin/python -m pytest tests/encodings/test_precision.py -m "not slow"

thorough: .venv/installed-test
	.venv/bin/python -m pytest -n 2 --dist worksteal -m "thorough or slow"

mutants: .venv/installed-test
	.venv/bin/python tests/mutants.py

lint: .venv/installed-test
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	@$(MAKE) --no-print-directory --jobs=2 types house

types:
	.venv/bin/pyrefly check --summary=none

house:
	.venv/bin/python -m pytest -q tests/test_house.py

# The site: documents, notebooks and the API reference. The atlas goes beside them, at build/site/atlas:
#   make docs && .venv/bin/python -m experiments.atlas --out=build/site/atlas
docs: .venv/installed-docs
	rm -rf docs/reference    # pages of modules that are no more
	.venv/bin/python -m sphinx --quiet -W --keep-going -c docs . build/site
	cp build/site/README.html build/site/index.html

.venv/installed: requirements.txt pyproject.toml | .venv/bin/python
	$(PIP) -e ".[experiments]"
	@touch $@

.venv/installed-test: requirements.txt pyproject.toml | .venv/bin/python
	$(PIP) -e ".[dev]"
	@touch .venv/installed $@

.venv/installed-docs: requirements.txt pyproject.toml | .venv/bin/python
	$(PIP) -e ".[docs]"
	@touch .venv/installed $@

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "posjax needs Python 3.11 or newer, $(PYTHON) is older: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv .venv
