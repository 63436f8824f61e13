# kbert: every target sets up what it needs. Only python3.11 and make have to be there.
PYTHON ?= python3.11
VENV ?= .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest
QUICKSTART_FLAGS ?=
BENCH_FLAGS ?=
INSTALL_FLAGS ?=
FUZZ_MINUTES ?= 10

# What a process compiles stays for the next one; so pip need not compile what nobody imports.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help quickstart demo test test-slow test-beam test-install fuzz notebooks constraints docs coverage bench lint types clean

help:
	@echo "make quickstart   text -> vocabulary -> pretrained BERT -> SavedModel, in five minutes on two cores"
	@echo "make demo         that BERT as a page of files, which runs in a browser"
	@echo "make test         the tests (TensorFlow backend, then the model on the JAX backend)"
	@echo "make test-slow    the tests marked slow"
	@echo "make test-beam    a corpus and answers made on Apache Beam, in an environment with the extra [beam]"
	@echo "make test-install the wheel and the sdist in empty environments, and the quickstart there"
	@echo "make fuzz         damaged files for every reader, ten minutes"
	@echo "make notebooks    runs the notebooks whose code has changed, and stores their outputs"
	@echo "make docs         the site, in docs/_build/html"
	@echo "make constraints  constraints.txt: the versions that the tests run with"
	@echo "make coverage     the tests on the TensorFlow backend, and the share of kbert's lines that they run"
	@echo "make bench        speed and memory beside the nearest peers, as ratios"
	@echo "make lint         ruff: style and import order"
	@echo "make types        mypy: the annotations of kbert/"

$(VENV)/.created:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip setuptools
	@touch $@

$(VENV)/.installed: $(VENV)/.created setup.py kbert/version.py
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

# Holds all of `.installed` and is resolved in one go.
$(VENV)/.installed-test: $(VENV)/.created setup.py kbert/version.py
	$(BIN)/python -m pip install --quiet --no-compile --editable '.[test]'
	@touch $(VENV)/.installed $@

quickstart: $(VENV)/.installed
	$(BIN)/python -m pipelines.quickstart $(QUICKSTART_FLAGS)

# npm fetches ONNX Runtime for browsers; kbert checks that it is the one that it knows.
RUNTIME := onnxruntime-web
RUNTIME_VERSION := 1.30.0

demo: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --editable '.[onnx]'
	test -e quickstart/preset || $(BIN)/python -m pipelines.quickstart $(QUICKSTART_FLAGS)
	mkdir -p build
	cd build && npm pack --silent $(RUNTIME)@$(RUNTIME_VERSION)
	rm -rf build/demo
	$(BIN)/python -m pipelines.demo --preset=quickstart/preset --site_dir=build/demo \
		--runtime=build/$(RUNTIME)-$(RUNTIME_VERSION).tgz

# Two processes for two cores: each begins with half of the files, and who is done takes what the
# other has not begun, so that no core waits for a long file of the other.
SPREAD := -n 2 --dist worksteal

# Every part runs, also behind one that failed, and what failed is said at the end: tests/parts.py.
test: $(VENV)/.installed-test
	$(BIN)/python -m tests.parts $(SPREAD)

test-slow: $(VENV)/.installed-test
	$(PYTEST) $(SPREAD) -m slow

# In an environment of its own: Beam's pins of protobuf and pyarrow are older than the newest.
test-beam:
	$(PYTHON) -m venv $(VENV)-beam
	$(VENV)-beam/bin/python -m pip install --quiet -e '.[beam]' pytest hypothesis
	$(VENV)-beam/bin/python -m pytest -m 'slow or not slow' tests/data/corpus/test_beam.py tests/experiments/test_beam.py

# What is built is installed with its dependencies, from pip's cache or index; INSTALL_FLAGS='--kinds=wheel
# --pythons=python3.11' chooses.
test-install: $(VENV)/.created
	$(BIN)/python -m tests.installed $(INSTALL_FLAGS)

fuzz: $(VENV)/.installed-test
	$(BIN)/python -m tests.fuzz --minutes=$(FUZZ_MINUTES)

# An hour for all of them on two cores; the fetched data and the models of the hub where there is a network.
notebooks: $(VENV)/.installed-test
	$(BIN)/python -m tests.notebooks.stored

# Without what tells a build apart ("+cpu"), which an index may not have.
constraints: $(VENV)/.installed-test
	@echo "# The versions that \`make test\` ran with, on Python 3.11. Written by \`make constraints\`." > constraints.txt
	$(BIN)/python -m pip freeze --exclude-editable | sed 's/+[a-z0-9.]*$$//' >> constraints.txt

docs: $(VENV)/.installed-docs
	$(BIN)/sphinx-build --fail-on-warning --keep-going --quiet --conf-dir docs . docs/_build/html

$(VENV)/.installed-docs: $(VENV)/.created setup.py kbert/version.py
	$(BIN)/python -m pip install --quiet --no-compile --editable '.[docs]'
	@touch $(VENV)/.installed $@

coverage: $(VENV)/.installed-test
	rm -f .coverage
	$(BIN)/python -m tests.parts --parts=tensorflow-1,tensorflow-2,tensorflow-3 $(SPREAD) --cov --cov-append --cov-report=
	$(BIN)/python -m coverage report

bench: $(VENV)/.installed-test
	$(BIN)/python -m benchmarks $(BENCH_FLAGS)

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-test
	$(BIN)/mypy

clean:
	rm -rf $(VENV) $(VENV)-beam $(VENV)-docs docs/_build build dist *.egg-info quickstart
