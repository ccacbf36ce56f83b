"""What an update of TRL 1.12's PPOTrainer costs: the yardstick for our PPO, which runs the same folders.

Needs TRL 1.12 beside what else is installed (see scripts/fixtures/trl_1_12_ppo.py); FOLDER is what ppo_models.py makes:

    PYTHONPATH=DIR python scripts/bench/trl_1_12_ppo.py --model FOLDER/policy --prompts FOLDER/prompts.jsonl \
        --reward-model FOLDER/reward --value-model FOLDER/value

Prints one line of JSON; what TRL prints goes to stderr.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import torch
import transformers
import trl
from datasets import Dataset
from ppo_clock import Clock
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PrinterCallback,
    set_seed,
)
from trl.experimental.ppo import PPOConfig, PPOTrainer, ppo_trainer


def main(arguments: argparse.Namespace) -> None:
    assert trl.__version__ == "1.12.0", trl.__version__
    set_seed(arguments.seed)
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
        trainer = trainer_of(arguments, folder, clock)
        tokens = counted_tokens(trainer.processing_class.pad_token_id)
        trainer.train()
    scores = [event["objective/scores"] for event in trainer.state.log_history if "objective/scores" in event]
    found = {
        "trl": trl.__version__,
        "updates": arguments.updates,
        "epochs": arguments.epochs,
        "parameters": sum(one.numel() for one in trainer.policy_model.parameters()),
        "threads": torch.get_num_threads(),
        **clock.seconds(),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "reward": [round(float(score), 4) for score in scores],
        "tokens": tokens,
    }
    line = json.dumps(found)
    print(line)
    if arguments.out:
        arguments.out.write_text(line)


def counted_tokens(pad: int) -> list[int]:
    """A list that grows by the tokens generated in an update (padding left out) with each update from now on."""
    counts: list[int] = []
    generate = ppo_trainer.batch_generation

    def batch_generation(model: Any, queries: torch.Tensor, *rest: Any) -> Any:
        found = generate(model, queries, *rest)
        counts.append(int((found[0][:, queries.shape[1] :] != pad).sum()))
        return found

    ppo_trainer.batch_generation = batch_generation
    return counts


def classifier(path: str) -> Any:
    return AutoModelForSequenceClassification.from_pretrained(path, dtype="float32", num_labels=1)


def trainer_of(arguments: argparse.Namespace, folder: str, clock: Clock) -> PPOTrainer:
    tokenizer = AutoTokenizer.from_pretrained(arguments.model, padding_side="left")
    prompts = [json.loads(line)["prompt"] for line in arguments.prompts.read_text().splitlines()]
    policy, reference = (AutoModelForCausalLM.from_pretrained(arguments.model, dtype="float32") for _ in range(2))
    value = classifier(arguments.value_model)
    made = PPOTrainer(
        args=PPOConfig(
            output_dir=folder,
            # The whole batch at once: with gradient accumulation TRL 1.12 steps once per accumulation, not minibatch.
            per_device_train_batch_size=arguments.batch,
            gradient_accumulation_steps=1,
            num_mini_batches=arguments.mini_batches,
            total_episodes=arguments.updates * arguments.batch,
            num_ppo_epochs=arguments.epochs,
            response_length=arguments.max_new_tokens,
            local_rollout_forward_batch_size=arguments.batch,
            stop_token="eos",
            temperature=1.0,
            kl_coef=0.05,
            learning_rate=arguments.learning_rate,
            num_sample_generations=0,
            gradient_checkpointing=False,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            bf16=False,
            disable_tqdm=True,
            seed=arguments.seed,
        ),
        processing_class=tokenizer,
        model=policy,
        ref_model=reference,
        reward_model=classifier(arguments.reward_model),
        value_model=value,
        train_dataset=Dataset.from_dict({"input_ids": tokenizer(prompts, add_special_tokens=False)["input_ids"]}),
        callbacks=[clock],
    )
    made.remove_callback(PrinterCallback)
    return made


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="folder of the causal language model")
    parser.add_argument("--reward-model", required=True, help="folder of the reward model")
    parser.add_argument("--value-model", required=True, help="folder of the critic")
    parser.add_argument("--prompts", required=True, type=Path, help="JSON lines with `prompt`")
    parser.add_argument("--updates", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--mini-batches", type=int, default=1)
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--learning-rate", type=float, default=1e-5, help="of policy and critic")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="write the line of JSON here as well")
    return parser.parse_args()


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    main(parsed())
