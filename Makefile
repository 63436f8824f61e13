# kbert: every target sets up what it needs. Only python3.11 and make have to be there.
PYTHON ?= python3.11
VENV ?= .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest
QUICKSTART_FLAGS ?=
BENCH_FLAGS ?=

.PHONY: help quickstart test test-slow bench lint clean

help:
	@echo "make quickstart   text -> vocabulary -> pretrained BERT -> SavedModel, in under ten minutes on two cores"
	@echo "make test         the tests (TensorFlow backend, then the model on the JAX backend)"
	@echo "make test-slow    the tests marked slow"
	@echo "make bench        speed and memory beside the nearest peers, as ratios"
	@echo "make lint         ruff: style and import order"

$(VENV)/.installed: setup.py kbert/version.py
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip setuptools
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	@touch $@

quickstart: $(VENV)/.installed
	$(BIN)/python -m pipelines.quickstart $(QUICKSTART_FLAGS)

# One process per file keeps strategies and backends apart; two processes for two cores. Files come
# in their own order: sorted by their number of tests, the few long ones (notebooks) would come last.
test: $(VENV)/.installed-test
	$(PYTEST) -n 2 --dist loadfile --no-loadscope-reorder
	KERAS_BACKEND=jax $(PYTEST) -n 2 --dist loadfile --no-loadscope-reorder tests/layers tests/models tests/heads

test-slow: $(VENV)/.installed-test
	$(PYTEST) -m slow

bench: $(VENV)/.installed-test
	$(BIN)/python -m benchmarks $(BENCH_FLAGS)

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

clean:
	rm -rf $(VENV) build dist *.egg-info quickstart
