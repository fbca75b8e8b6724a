# The whole of tautline from a clean clone: `make quickstart`, `make test`. Both do all the set-up themselves.
# `make help` lists the targets, from the ## beside each.
SHELL := /bin/bash
BUILD ?= build
JOBS ?= $(shell nproc)
ENVIRONMENT = $(shell scripts/environment)
BIN = $(ENVIRONMENT)/bin

.PHONY: help setup build quickstart test test-fault core test-gpu bench-attention format clean

help: ## this list
	@awk -F ':[^#]*## ' '/^[a-z-]+:[^#]*## / {printf "make %-16s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

setup: ## apt packages and the pinned Python environment, where they are missing
	@scripts/setup

build: setup ## the program and its tests (BUILD=build, JOBS=cores)
	@[[ -e $(BUILD)/build.ninja ]] || scripts/configure $(BUILD) auto
	@$(BIN)/ninja -C $(BUILD) -j $(JOBS)

test: build ## every CPU test
	@$(BIN)/ctest --test-dir $(BUILD) -j $(JOBS) --output-on-failure

# kill -9 of every rank and of the launcher at every kind of moment, 20 times (`make test` does it 4 times).
test-fault: build ## ranks and launcher killed at every kind of moment, 20 times
	@TAUTLINE_FAULT_KILLS=all $(BIN)/ctest --test-dir $(BUILD) -R '^fault' --output-on-failure

core: setup ## the torch-free half by itself, built and tested
	@[[ -e build-core/build.ninja ]] || scripts/configure build-core core
	@$(BIN)/ninja -C build-core -j $(JOBS)
	@$(BIN)/ctest --test-dir build-core -j $(JOBS) --output-on-failure

test-gpu: setup ## the GPU tests, where a GPU is
	@[[ -e build-cuda/build.ninja ]] || scripts/configure build-cuda cuda
	@$(BIN)/ninja -C build-cuda -j $(JOBS) test_gpu
	@build-cuda/test_gpu

# Attention beside its peers, where a GPU is. PEERS="--fa4 SITE --fa3 FOLDER --hstu FOLDER" names those outside PyTorch.
bench-attention: setup ## attention beside its peers, where a GPU is
	@[[ -e build-cuda/build.ninja ]] || scripts/configure build-cuda cuda
	@$(BIN)/ninja -C build-cuda -j $(JOBS) tautline_ops_shared
	@PYTHONDONTWRITEBYTECODE=1 $(BIN)/python bench/attention --ops build-cuda/libtautline_ops.so \
	    --json bench/results/attention.json --commit $$(git rev-parse --short HEAD) $(PEERS)

# The main job: a seeded synthetic log (or LOG=ratings.csv), then training on 4 local ranks. USER, ITEM and TIME
# name the columns; a shell has a USER of its own, so they count on make's command line alone.
given = $(if $(filter command,$(firstword $(origin $(1)))),$($(1)))
quickstart: export USER_COLUMN ?= $(call given,USER)
quickstart: export ITEM_COLUMN ?= $(call given,ITEM)
quickstart: export TIME_COLUMN ?= $(call given,TIME)
quickstart: export DELIMITER ?=
quickstart: export TIME_UNIT ?=
quickstart: setup ## train on a synthetic log, or on LOG=ratings.csv
	@[[ -e $(BUILD)/build.ninja ]] || scripts/configure $(BUILD) auto
	@$(BIN)/ninja -C $(BUILD) -j $(JOBS) tautline_program
	@scripts/quickstart $(BUILD)/tautline $(LOG)

format: ## clang-format on every source
	@scripts/format

clean: ## remove the builds
	rm -rf build build-core build-cuda
