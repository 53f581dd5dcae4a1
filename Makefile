# Everything needs Python 3.11 or newer and make; the environment is made in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ECOSYSTEM := .venv-ecosystem
MKDOCS := NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check

# Without compiled files, each program that a test starts would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help test test-slow test-versions test-ecosystem soak lint style types layers sizes size docs docs-serve format demo reproduce-quick clean
.DEFAULT_GOAL := help

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 12

test: $(VENV)/dev ## lint, check types and layers, build the documentation, run the quick tests
	$(MAKE) --jobs 2 lint docs
	$(BIN)/python -m pytest -n 2 --dist worksteal

test-slow: $(VENV)/dev ## the tests marked slow, and more examples of those that draw them
	$(BIN)/python -m pytest -n 2 -m 'slow or hypothesis' --hypothesis-profile thorough

test-versions: ## the quick tests with the lowest and the newest Python and torch that can be installed
	$(PYTHON) tests/run_versions.py

test-ecosystem: $(ECOSYSTEM)/dev ## the adapter and the recipes with deepinv, PyProximal, ODL and SCICO themselves; several GB, in .venv-ecosystem
	$(ECOSYSTEM)/bin/python -m pytest -p no:odl_plugins ecosystem

soak: $(VENV)/dev ## half an hour of hostile problems, files and visitors; fails if anything gives way
	$(BIN)/python -m soak.problems
	$(BIN)/python -m soak.files
	$(BIN)/python -m soak.page

lint: style types layers sizes ## ruff, mypy --strict, import-linter, lines of code by room

style: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/dev
	$(BIN)/mypy

layers: $(VENV)/dev
	$(BIN)/lint-imports

sizes:
	$(PYTHON) tools/size.py

size: ## lines of code by room; lowers the records that no room may exceed
	$(PYTHON) tools/size.py --lower

docs: $(VENV)/dev ## the documentation, into site/; warnings are errors
	$(MKDOCS) build --strict --quiet

docs-serve: $(VENV)/dev ## the documentation on 127.0.0.1:8000, built anew when a page changes
	$(MKDOCS) serve --dev-addr 127.0.0.1:8000

format: $(VENV)/dev ## rewrite the code in house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

demo: $(VENV)/cli ## three tasks, pictures and a report in demo-output/
	$(BIN)/convexlift demo --output demo-output

reproduce-quick: $(VENV)/cli ## the paper's experiments, short, with reports in reproduce-quick/
	$(BIN)/python -m experiments all --quick --output reproduce-quick

clean: ## remove the environment and caches
	rm -rf $(VENV) $(ECOSYSTEM) .venv-versions site .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis

# torch first and alone: once it is there, no other package pulls in another build of it.
$(VENV)/torch: constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) --constraint constraints.txt torch
	touch $@

# Another torch than the one above: deepinv needs a torchvision that was built with it. The pytest
# plugin of ODL 1.0 does not load with today's pytest, hence -p no:odl_plugins above.
$(ECOSYSTEM)/dev: pyproject.toml
	$(PYTHON) -m venv $(ECOSYSTEM)
	$(ECOSYSTEM)/bin/python -m pip install --quiet --disable-pip-version-check \
		--editable '.[deepinv]' benchopt h5py odl pyproximal pytest scico
	touch $@

$(VENV)/cli: $(VENV)/torch pyproject.toml
	$(INSTALL) --constraint constraints.txt --editable '.[cli]'
	touch $@

$(VENV)/dev: $(VENV)/torch pyproject.toml
	$(INSTALL) --constraint constraints.txt --editable '.[dev]'
	touch $@ $(VENV)/cli
