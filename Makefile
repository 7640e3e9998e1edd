# `make demo` and `make test` need nothing but Python 3.11: each installs its requirements.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
GROUPS_STAMP := $(VENV)/.groups-installed

# Hundreds of real servers run here at the same time, and a busy machine can delay one of them.
# A failed test runs once more alone: if it fails again, it is a fault.
AGAIN = echo "once more, one at a time; a test that passes now is unsteady:" && \
	$(BIN)/python -m pytest -v --last-failed -m "not slow"

.PHONY: demo test slow bench screens check docs clean

$(STAMP): pyproject.toml
	@echo "installing autofit and a prebuilt llama.cpp into $(VENV) (a few minutes, once)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed: make PYTHON=python3.12 demo"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --editable '.[embedded,report]'
	touch $@

$(GROUPS_STAMP): $(STAMP)
	@echo "installing what tests and checks need"
	$(BIN)/python -m pip install --quiet --group test --group check --group docs
	touch $@

demo: $(STAMP)
	$(BIN)/autofit demo

test: $(GROUPS_STAMP)
	$(BIN)/python tests/fetch_llama_cpp.py
	$(BIN)/python -m pytest -n 2 --dist load --durations=25 -m "not slow" || { test $$? -eq 1 && $(AGAIN); }

# Benchmarks and long runs; they print their numbers.
slow: $(GROUPS_STAMP)
	$(BIN)/python tests/fetch_llama_cpp.py
	$(BIN)/python -m pytest -m slow -s

# Tables of numbers, printed; each script takes --output FILE to keep one.
bench: $(GROUPS_STAMP)
	for script in benchmarks/bench_*.py; do PYTHONPATH=.:tests $(BIN)/python $$script || exit 1; done

# The captures of docs/screens.md, about three minutes.
screens: $(GROUPS_STAMP)
	PYTHONPATH=.:tests $(BIN)/python benchmarks/make_screens.py

check: $(GROUPS_STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tests/checks/check_wording.py

docs: $(GROUPS_STAMP)
	$(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) dist build
