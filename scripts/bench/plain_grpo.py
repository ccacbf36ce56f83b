"""GRPO as a user of plain TRL would write it: the yardstick for what our layer costs.

usage: plain_grpo.py quickstart|first_step MODEL_DIR STEPS OUTPUT_DIR

`quickstart` is the experiment of that name, which launcher.py times whole; `first_step` has the folder `rows` and the
one reward of first_step.py, and imports nothing else of ours.
"""

import sys
from typing import Any

from datasets import Dataset, load_dataset
from trl import GRPOConfig, GRPOTrainer


def quickstart() -> dict[str, Any]:
    """Return the rows and the rewards of the experiment."""
    import functools

    from rlhf_cli.data.worlds import generate
    from rlhf_cli.rewards.length import length_ramp
    from rlhf_cli.rewards.toy import digits_only, sums_correct

    brevity = functools.partial(length_ramp, full=2, zero=16, unit="characters")
    rows = generate("toy_sums", {"num_rows": 2000, "max_value": 20}, seed=0)
    return {"reward_funcs": [sums_correct, digits_only, brevity], "train_dataset": Dataset.from_list(rows)}


def first_step() -> dict[str, Any]:
    """Return what lies in the working directory, and the reward that holds the clock."""
    from marked_steps import correct

    return {"reward_funcs": [correct], "train_dataset": load_dataset("rows", split="train")}


task, model_dir, steps, output_dir = sys.argv[1:]
trainer = GRPOTrainer(
    model=model_dir,
    args=GRPOConfig(
        output_dir=output_dir,
        max_steps=int(steps),
        per_device_train_batch_size=64,
        num_generations=8,
        max_completion_length=16,
        learning_rate=1e-3,
        gradient_checkpointing=False,
        logging_steps=1,
        log_completions=True,
        num_completions_to_print=0,
        save_steps=100,
        save_total_limit=2,
        report_to="none",
        reward_weights={"quickstart": [1.0, 0.5, 0.2], "first_step": None}[task],
        use_cpu=True,
        bf16=False,
        seed=0,
    ),
    **{"quickstart": quickstart, "first_step": first_step}[task](),
)
trainer.train()
trainer.save_model(f"{output_dir}/model")
losses = [event["loss"] for event in trainer.state.log_history if "loss" in event]
print("losses", losses)
