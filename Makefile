# `make` alone prints what there is. Every target that needs Python sets up venv/ first, once.

.DEFAULT_GOAL := help

VENV ?= venv
PY := $(VENV)/bin/python
READY := $(VENV)/.setup-stamp

# Settings, given as `make TARGET NAME=value`. What is left empty is decided by the program.
DURATION ?=
OUTPUT ?=
# Not from the surroundings: shells have a variable of that name.
ENV :=
SEED ?=
EPISODES ?=
CHECKPOINT ?=
LOG_FILE ?=
CONFIG ?= config/ppo_sequential.yaml
ARGS ?=

TRAIN_FLAGS = $(if $(ENV),--env "$(ENV)") $(if $(SEED),--seed "$(SEED)") $(ARGS)
EVALUATE_FLAGS = $(if $(ENV),--env "$(ENV)") $(if $(SEED),--seed "$(SEED)")

# newest NAME: shell code for the most recently written file of that name below runs/ and benchmarks/
newest = find runs benchmarks -type f -path '$(1)' -exec ls -t {} + 2>/dev/null | sed -n 1p

.PHONY: help install test lint quick-test benchmark train train-timed evaluate plot tensorboard clean

help:  ## this list
	@echo "make TARGET [NAME=value ...]"
	@echo
	@awk -F ':.*  ## ' '/^[a-z][a-z-]*:.*  ## / { printf "  %-12s  %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "  DURATION    hours: benchmark (0.02), train-timed (1.0)"
	@echo "  OUTPUT      folder of the results: benchmark, train, train-timed; the picture: plot"
	@echo "  ENV         game or Gymnasium id: benchmark (procgen-coinrun-v0), train, train-timed, evaluate"
	@echo "  SEED        seed: benchmark, train, train-timed, evaluate"
	@echo "  EPISODES    episodes to evaluate: benchmark (20), evaluate (100)"
	@echo "  CONFIG      settings of benchmark, train and train-timed ($(CONFIG))"
	@echo "  CHECKPOINT  checkpoint to evaluate (the newest *_final.pt)"
	@echo "  LOG_FILE    metrics.jsonl to plot (the newest)"
	@echo "  ARGS        further flags, passed on: all but benchmark, help, install, lint, clean;"
	@echo "              in benchmark they go to the training"

# --- Setting up ---------------------------------------------------------------------------------------------

$(READY): requirements.txt setup.sh
	@VENV="$(VENV)" ./setup.sh

install: $(READY)  ## set up venv/ with all that is needed (the other targets do so by themselves)
	@echo "$(VENV)/ is ready"

quick-test: $(READY)  ## check the installation in less than a minute
	@$(PY) quick_test.py $(ARGS)

# --- The main job -------------------------------------------------------------------------------------------

benchmark: $(READY)  ## train for a short time, evaluate and plot: the whole job in a few minutes
	@set -e; \
	out="$(OUTPUT)"; out="$${out:-benchmarks/quick_$$(date +%Y%m%d_%H%M%S)_$$$$}"; \
	$(PY) train_timed.py --config "$(CONFIG)" --duration "$(or $(DURATION),0.02)" --output-dir "$$out" \
		--env "$(or $(ENV),procgen-coinrun-v0)" $(if $(SEED),--seed "$(SEED)") $(ARGS); \
	checkpoint=$$(ls -t "$$out"/checkpoints/*_final.pt | sed -n 1p); \
	log_file=$$(ls -t "$$out"/logs/*/metrics.jsonl | sed -n 1p); \
	$(PY) evaluate.py --checkpoint "$$checkpoint" --num-episodes "$(or $(EPISODES),20)" \
		$(if $(SEED),--seed "$(SEED)"); \
	$(PY) plot_results.py --log-file "$$log_file" --output "$$out/plot.png"; \
	echo "Results: $$out/ (benchmark_metrics.json, evaluation/, plot.png)"

train: $(READY)  ## train PPO for the number of timesteps in CONFIG
	@$(PY) train_ppo_sequential.py --config "$(CONFIG)" $(if $(OUTPUT),--output-dir "$(OUTPUT)") $(TRAIN_FLAGS)

train-timed: $(READY)  ## train PPO for DURATION hours of wall-clock time
	@$(PY) train_timed.py --config "$(CONFIG)" --duration "$(or $(DURATION),1.0)" \
		$(if $(OUTPUT),--output-dir "$(OUTPUT)") $(TRAIN_FLAGS)

evaluate: $(READY)  ## evaluate CHECKPOINT, or else the newest final checkpoint
	@checkpoint="$(CHECKPOINT)"; checkpoint="$${checkpoint:-$$($(call newest,*_final.pt))}"; \
	if [ -z "$$checkpoint" ]; then \
		echo "no *_final.pt below runs/ or benchmarks/: train first (make benchmark) or give CHECKPOINT" >&2; \
		exit 2; \
	fi; \
	echo "Evaluating $$checkpoint"; \
	$(PY) evaluate.py --checkpoint "$$checkpoint" $(if $(EPISODES),--num-episodes "$(EPISODES)") \
		$(EVALUATE_FLAGS) $(ARGS)

plot: $(READY)  ## draw the curves of LOG_FILE, or else of the newest run
	@log_file="$(LOG_FILE)"; log_file="$${log_file:-$$($(call newest,*/logs/*/metrics.jsonl))}"; \
	if [ -z "$$log_file" ]; then \
		echo "no metrics.jsonl below runs/ or benchmarks/: train first (make benchmark) or give LOG_FILE" >&2; \
		exit 2; \
	fi; \
	output="$(OUTPUT)"; output="$${output:-$$(dirname "$$log_file")/plot.png}"; \
	echo "Plotting $$log_file"; \
	$(PY) plot_results.py --log-file "$$log_file" --output "$$output" $(ARGS)

tensorboard: $(READY)  ## watch runs/ and benchmarks/ in the browser, also while they train
	@$(PY) -m tensorboard.main --logdir_spec runs:runs,benchmarks:benchmarks $(ARGS)

# --- Looking after the code ---------------------------------------------------------------------------------

test: $(READY)  ## run all tests
	@$(PY) -m pytest $(ARGS)

lint: $(READY)  ## check style and types
	@$(PY) -m ruff check .
	@$(PY) -m mypy src

clean:  ## remove caches; results and venv/ stay
	@find . \( -path './$(VENV)' -o -path ./.git -o -path ./runs -o -path ./benchmarks \) -prune -o -type d \
		\( -name __pycache__ -o -name .pytest_cache -o -name .mypy_cache -o -name .ruff_cache \
		-o -name .hypothesis -o -name '*.egg-info' \) -prune -exec rm -rf {} +
