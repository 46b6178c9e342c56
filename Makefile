# `make` alone lists the targets. Targets that need Python set up venv/ first, once.

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
# Of the benchmark, which takes several.
HOURS ?=
ENVS ?= $(ENV)
SEEDS ?= $(SEED)
EPISODES ?=
CHECKPOINT ?=
LOG_FILE ?=
CONFIG ?=
RUNS ?=
ARGS ?=
# Test processes: one more than there are cores, since many tests wait for other processes.
JOBS ?= $(shell echo $$(($$(nproc 2>/dev/null || echo 2) + 1)))

TRAIN_FLAGS = $(if $(CONFIG),--config "$(CONFIG)") $(if $(OUTPUT),--output-dir "$(OUTPUT)") $(if $(ENV),--env "$(ENV)") $(if $(SEED),--seed "$(SEED)") $(ARGS)
EVALUATE_FLAGS = $(if $(ENV),--env "$(ENV)") $(if $(SEED),--seed "$(SEED)")

# newest NAME: shell code for the most recently written file of that name below runs/ and benchmarks/
newest = find runs benchmarks -type f -path '$(1)' -exec ls -t {} + 2>/dev/null | sed -n 1p

.PHONY: help install test test-system lint quick-test profile benchmark evaluate compare plot tensorboard clean \
	train train-timed train-parallel train-parallel-timed train-a2c train-a2c-timed train-a2c-parallel \
	train-a2c-parallel-timed train-a3c train-a3c-timed train-impala train-impala-timed train-impala-parallel \
	train-impala-parallel-timed train-distributed train-a2c-distributed train-impala-distributed \
	evaluate-ppo evaluate-a2c evaluate-a3c evaluate-impala peers

help:  ## show this list
	@echo "make TARGET [NAME=value ...]"
	@echo
	@awk -F ':.*  ## ' '/^[a-z][a-z0-9-]*:.*  ## / { line = sprintf("  %-28s", $$1); n = split($$2, words, " "); \
		for (i = 1; i <= n; i++) { if (length(line words[i]) > 78) { print line; line = sprintf("%30s", "") } \
		line = line " " words[i] } print line }' $(MAKEFILE_LIST)
	@echo
	@echo "  HOURS       time of benchmark in all: 8h, 45m (ten minutes on two cores)"
	@echo "  DURATION    30m, 1h30m: each run of benchmark (planned), timed targets (1h)"
	@echo "  OUTPUT      folder of results (benchmark, training), picture (plot, compare)"
	@echo "  ENVS        games of benchmark (starpilot), as in ENVS=\"coinrun starpilot\""
	@echo "  SEEDS       seeds of benchmark (1 2 3), as in SEEDS=\"1 2 3 4 5\""
	@echo "  ENV         game or Gymnasium id (procgen-coinrun-v0): training, evaluation"
	@echo "  SEED        seed: training, evaluation"
	@echo "  EPISODES    episodes to evaluate: benchmark (400), evaluation (100)"
	@echo "  CONFIG      settings of training (config/...); of benchmark: ppo_parallel=FILE"
	@echo "  CHECKPOINT  checkpoint to evaluate (the newest *_final.pt)"
	@echo "  LOG_FILE    metrics.jsonl to plot (the newest)"
	@echo "  RUNS        folders of runs or studies to compare (the newest study)"
	@echo "  ARGS        further flags, passed on: all but help, install, lint, clean"

# --- Setting up ---------------------------------------------------------------------------------------------

$(READY): requirements.txt requirements-dev.txt setup.sh
	@VENV="$(VENV)" ./setup.sh

install: $(READY)  ## set up venv/ with all packages (the other targets do this when needed)
	@echo "$(VENV)/ is ready"

quick-test: $(READY)  ## check the installation in less than a minute
	@$(PY) quick_test.py $(ARGS)

profile: $(READY)  ## measure this machine and get advice on its settings; three to four minutes
	@$(PY) profile_cpu.py $(if $(ENV),--env $(ENV)) $(if $(OUTPUT),--output-dir "$(OUTPUT)") $(ARGS)

# --- The main job -------------------------------------------------------------------------------------------

benchmark: $(READY)  ## which algorithm learns most here? ten minutes on two cores, or HOURS=1h and more
	@out="$(OUTPUT)"; out="$${out:-benchmarks/study_$$(date +%Y%m%d_%H%M%S)_$$$$}"; \
	plan="--hours $(HOURS)"; [ ! -e "$$out/study.yaml" ] || plan=; \
	$(PY) run_benchmark.py $$plan $(if $(ENVS),--envs $(ENVS)) $(if $(SEEDS),--seeds $(SEEDS)) \
		$(if $(DURATION),--duration "$(DURATION)") $(if $(EPISODES),--evaluate-episodes "$(EPISODES)") \
		$(if $(CONFIG),--config "$(CONFIG)") --output-dir "$$out" $(ARGS)

# train_with ALGORITHM,MODE and timed_with ALGORITHM,MODE: train for the timesteps of the configuration, or for
# DURATION
train_with = @$(PY) train.py --algorithm $(1) --mode $(2) $(TRAIN_FLAGS)
timed_with = @$(PY) train.py --algorithm $(1) --mode $(2) --duration "$(or $(DURATION),1h)" $(TRAIN_FLAGS)

train: $(READY)  ## train PPO in one process for the timesteps of its configuration
	$(call train_with,ppo,sequential)

train-timed: $(READY)  ## train PPO in one process for DURATION
	$(call timed_with,ppo,sequential)

train-parallel: $(READY)  ## train PPO in several processes
	$(call train_with,ppo,parallel)

train-parallel-timed: $(READY)  ## train PPO in several processes for DURATION
	$(call timed_with,ppo,parallel)

train-a2c: $(READY)  ## train A2C in one process
	$(call train_with,a2c,sequential)

train-a2c-timed: $(READY)  ## train A2C in one process for DURATION
	$(call timed_with,a2c,sequential)

train-a2c-parallel: $(READY)  ## train A2C in several processes
	$(call train_with,a2c,parallel)

train-a2c-parallel-timed: $(READY)  ## train A2C in several processes for DURATION
	$(call timed_with,a2c,parallel)

train-a3c: $(READY)  ## train A3C in several asynchronous processes
	$(call train_with,a3c,parallel)

train-a3c-timed: $(READY)  ## train A3C in several processes for DURATION
	$(call timed_with,a3c,parallel)

train-impala: $(READY)  ## train IMPALA in one process
	$(call train_with,impala,sequential)

train-impala-timed: $(READY)  ## train IMPALA in one process for DURATION
	$(call timed_with,impala,sequential)

train-impala-parallel: $(READY)  ## train IMPALA with actors and learners
	$(call train_with,impala,parallel)

train-impala-parallel-timed: $(READY)  ## train IMPALA with actors and learners for DURATION
	$(call timed_with,impala,parallel)

train-distributed: $(READY)  ## train PPO on several nodes: ARGS="--num-nodes N --node-rank I --master-addr HOST"
	$(call train_with,ppo,distributed)

train-a2c-distributed: $(READY)  ## train A2C on several nodes, with the same ARGS
	$(call train_with,a2c,distributed)

train-impala-distributed: $(READY)  ## train IMPALA on several nodes, with the same ARGS
	$(call train_with,impala,distributed)

# evaluate_newest PATTERN: evaluate CHECKPOINT, or the newest final checkpoint that fits the pattern
define evaluate_newest
	@checkpoint="$(CHECKPOINT)"; checkpoint="$${checkpoint:-$$($(call newest,$(1)))}"; \
	if [ -z "$$checkpoint" ]; then \
		echo "no $(1) below runs/ or benchmarks/: train first (make benchmark) or give CHECKPOINT" >&2; \
		exit 2; \
	fi; \
	echo "Evaluating $$checkpoint"; \
	$(PY) evaluate.py --checkpoint "$$checkpoint" $(if $(EPISODES),--num-episodes "$(EPISODES)") \
		$(EVALUATE_FLAGS) $(ARGS)
endef

evaluate: $(READY)  ## evaluate CHECKPOINT (default: the newest final checkpoint)
	$(call evaluate_newest,*_final.pt)

evaluate-ppo: $(READY)  ## evaluate the newest checkpoint of PPO
	$(call evaluate_newest,*/ppo_*_final.pt)

evaluate-a2c: $(READY)  ## evaluate the newest checkpoint of A2C
	$(call evaluate_newest,*/a2c_*_final.pt)

evaluate-a3c: $(READY)  ## evaluate the newest checkpoint of A3C
	$(call evaluate_newest,*/a3c_*_final.pt)

evaluate-impala: $(READY)  ## evaluate the newest checkpoint of IMPALA
	$(call evaluate_newest,*/impala_*_final.pt)

compare: $(READY)  ## compare RUNS, folders of runs or studies (default: the newest study)
	@if [ -n "$(RUNS)" ]; then \
		exec $(PY) compare_results.py --runs $(RUNS) $(if $(OUTPUT),--output "$(OUTPUT)") $(ARGS); \
	fi; \
	study=$$($(call newest,*/study.yaml)); \
	if [ -z "$$study" ]; then \
		echo "no study.yaml below runs/ or benchmarks/: run a study first (make benchmark) or give RUNS" >&2; \
		exit 2; \
	fi; \
	study=$$(dirname "$$study"); echo "Comparing the runs in $$study"; \
	output="$(OUTPUT)"; $(PY) compare_results.py --runs "$$study" --output "$${output:-$$study/comparison.png}" $(ARGS)

plot: $(READY)  ## draw the training curves of LOG_FILE (default: the newest run)
	@log_file="$(LOG_FILE)"; log_file="$${log_file:-$$($(call newest,*/logs/*/metrics.jsonl))}"; \
	if [ -z "$$log_file" ]; then \
		echo "no metrics.jsonl below runs/ or benchmarks/: train first (make benchmark) or give LOG_FILE" >&2; \
		exit 2; \
	fi; \
	echo "Plotting $$log_file"; \
	$(PY) plot_results.py --log-file "$$log_file" $(if $(OUTPUT),--output "$(OUTPUT)") $(ARGS)

tensorboard: $(READY)  ## show runs/ and benchmarks/ in the browser, also while they train
	@$(PY) -m rlcb tensorboard $(ARGS)

peers: $(READY)  ## measure this project against other libraries (docs/peers.md): an hour and a quarter
	@$(PY) -m perf.peers $(ARGS)

# --- Looking after the code ---------------------------------------------------------------------------------

test: $(READY)  ## run all tests in parallel, except system tests; ARGS="tests/rl -x" runs some
	@$(if $(ARGS),exec $(PY) -m pytest $(ARGS);) code=0; \
	$(PY) -m pytest --ignore=tests/system -m "not alone" -n $(JOBS) --maxprocesses=8 --dist worksteal || code=$$?; \
	$(PY) -m pytest --ignore=tests/system -m alone || code=$$?; exit $$code

test-system: $(READY)  ## run the tests that use root, SLURM, network namespaces or Chromium, or train for long
	@$(PY) -m pytest tests/system $(ARGS)

lint: $(READY)  ## check style and types
	@$(PY) -m ruff check .
	@$(PY) -m mypy src

clean:  ## remove caches, but not results and venv/
	@find . \( -path './$(VENV)' -o -path ./.git -o -path ./runs -o -path ./benchmarks \) -prune -o -type d \
		\( -name __pycache__ -o -name .pytest_cache -o -name .mypy_cache -o -name .ruff_cache \
		-o -name .hypothesis -o -name '*.egg-info' \) -prune -exec rm -rf {} +
