"""What an update of TRL 1.12's PPOTrainer costs: the yardstick for our PPO, which runs the same folders.

Needs TRL 1.12 beside what else is installed (see scripts/fixtures/trl_1_12_ppo.py):

    python scripts/bench/ppo_models.py FOLDER
    PYTHONPATH=DIR python scripts/bench/trl_1_12_ppo.py --model FOLDER/policy --prompts FOLDER/prompts.jsonl \
        --reward-model FOLDER/reward --value-model FOLDER/value

`--reward toy_sums` instead of a reward model scores the texts with the rewards of `exp=toy_ppo`; the critic then begins
with a head of zeros, as ours does. Prints one line of JSON; what TRL prints goes to stderr.
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
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import torch
import transformers
import trl
from datasets import Dataset
from ppo_clock import Clock
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PrinterCallback,
    set_seed,
)
from trl.experimental.ppo import PPOConfig, PPOTrainer, ppo_trainer

from rlhf_cli.rewards.length import length_ramp
from rlhf_cli.rewards.toy import sums_correct


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


class ToyReward(nn.Module):
    """`correct + 0.2 brevity` of `exp=toy_ppo` in the shape of a reward model: the score is every token's hidden state.

    TRL calls the backbone that `base_model_prefix` names and puts `score` on its last hidden state.
    """

    base_model_prefix = "backbone"

    def __init__(self, tokenizer: Any) -> None:
        super().__init__()
        self.backbone = _Backbone(tokenizer)
        self.score = nn.Identity()


class _Backbone(nn.Module):
    def __init__(self, tokenizer: Any) -> None:
        super().__init__()
        self._tokenizer = tokenizer

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, **_: Any) -> SimpleNamespace:
        rows = [ids[mask].tolist() for ids, mask in zip(input_ids, attention_mask.bool(), strict=True)]
        texts = [self._tokenizer.decode(ids, skip_special_tokens=True).partition("=") for ids in rows]
        sums, answers = [text[0].split("+") for text in texts], [text[2] for text in texts]
        correct = sums_correct(answers, *zip(*sums, strict=True))
        brevity = length_ramp(answers, full=2, zero=8, unit="characters")
        totals = torch.tensor(correct) + 0.2 * torch.tensor(brevity)
        return SimpleNamespace(hidden_states=[totals.view(-1, 1, 1).expand(*input_ids.shape, 1)])


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
    if arguments.reward == "toy_sums":
        reward: nn.Module = ToyReward(tokenizer)
        nn.init.zeros_(value.score.weight)
    else:
        reward = classifier(arguments.reward_model)
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
        reward_model=reward,
        value_model=value,
        train_dataset=Dataset.from_dict({"input_ids": tokenizer(prompts, add_special_tokens=False)["input_ids"]}),
        callbacks=[clock],
    )
    made.remove_callback(PrinterCallback)
    return made


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="folder of the causal language model")
    parser.add_argument("--reward", choices=("model", "toy_sums"), default="model")
    parser.add_argument("--reward-model", help="folder of the reward model")
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
