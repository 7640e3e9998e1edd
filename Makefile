# `make demo` and `make test` need nothing but Python 3.11: each makes what it needs.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test slow bench check clean

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --editable '.[embedded,report]' --group test --group check
	touch $@

demo: $(STAMP)
	$(BIN)/autofit demo

test: $(STAMP)
	$(BIN)/python tests/fetch_llama_cpp.py
	$(BIN)/python -m pytest -n 2 --dist load -m "not slow"

# Benchmarks and long runs; they print their numbers.
slow: $(STAMP)
	$(BIN)/python tests/fetch_llama_cpp.py
	$(BIN)/python -m pytest -m slow -s

# Tables of numbers, printed; each script takes --output FILE to keep one.
bench: $(STAMP)
	for script in tests/benchmarks/bench_*.py; do PYTHONPATH=tests $(BIN)/python $$script || exit 1; done

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

clean:
	rm -rf $(VENV) dist build
