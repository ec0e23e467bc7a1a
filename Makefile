# Two commands do everything, set-up included: `make run` and `make test`.
# Each may be the first one typed on a fresh machine; a second run starts at once.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

PYTEST := $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

.PHONY: help run test test-fast test-all lint types unit test-clusters docs gpu format clean

help: ## show this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-9s %s\n", $$1, $$2}'

run: $(VENV)/.run ## the main job: two CPU workers learn to tell flowers apart, a minute or two
	$(BIN)/fleetx data make output/flowers
	$(BIN)/fleetrun --gpus none --nproc_per_node 2 --log_dir output/log examples/resnet/train_with_fleet.py \
		--data_dir=output/flowers --output=output/resnet --model=ResNet18 --width=16 \
		--image_shape=3,64,64 --lower_scale=0.35 --batch_size=16 --num_epochs=8 --warm_up_epochs=2 --log_steps=5 \
		--fp16=True --use_recompute=True --use_lars=True --lars_coeff=0.02 --lr=0.1
	@echo "loss, accuracy and throughput: output/resnet/curves.png. Next:"
	@echo "  $(BIN)/fleetx watch output/log                # what every worker did"
	@echo "  $(BIN)/mlserver start output/resnet/model     # serve it ($(BIN)/pip install mlserver)"
	@echo "  $(BIN)/fleetx evaluate --model output/resnet/model --data_dir output/flowers --output output/v.safetensors &&"
	@echo "  $(BIN)/fleetx verify --vectors output/v.safetensors --endpoint http://localhost:8080   # the same answers?"

test: lint types unit ## lint, types and all tests; what CI runs

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell

types: $(VENV)/.dev
	$(BIN)/mypy

unit: $(VENV)/.dev
	$(PYTEST) --durations=40

test-fast: lint types ## the inner loop, under two minutes: structure, plans, options, and the parts of strategies
	$(PYTEST) -q tests/test_rooms.py tests/test_near_names.py tests/plan tests/config tests/comm tests/graph tests/nn \
		tests/metrics tests/strategies/*/

test-all: lint types ## every composition, with fresh examples for property tests
	$(PYTEST) --all --durations=40

test-clusters: $(VENV)/.dev ## SLURM, Ray, MPI, ssh and Kubernetes' manifests, for real; Debian: slurm-wlm munge openssh-server
	$(PIP) install --quiet --constraint constraints.txt --editable '.[dev,clusters]'
	$(BIN)/python -m pytest --clusters -rs tests/clusters

docs: $(VENV)/.dev ## the site, in output/site; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "open output/site/index.html"

gpu: $(VENV)/.dev ## the tests that are about a GPU, on a machine that has one
	$(BIN)/python -m pytest --gpu tests/strategies/recompute/test_host_copies.py tests/evaluate/test_precision.py \
		tests/nn/test_row_outputs.py tests/strategies/layerwise tests/strategies/amp \
		tests/strategies/sharding/test_state_offload.py tests/strategies/test_compile.py tests/strategies/test_cuda_graph.py \
		tests/strategies/test_captured_workers.py tests/strategies/test_captured_cut_layers.py \
		tests/strategies/tensor_parallel/test_shared_randomness.py tests/strategies/test_captured_dgc.py \
		tests/strategies/fp8/test_on_a_card.py tests/engine/test_freed.py tests/engine/test_told_figures.py tests/profiling/test_eager.py \
		tests/data/images/test_card.py tests/spread/test_on_a_card.py

format: $(VENV)/.dev ## rewrite the sources in the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove everything that make made
	rm -rf $(VENV) output log .mypy_cache .ruff_cache .pytest_cache

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) install --quiet --constraint constraints.txt --editable '.[examples,watch]'
	@touch $@

$(VENV)/.dev: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@ $(VENV)/.run
