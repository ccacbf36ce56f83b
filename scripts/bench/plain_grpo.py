"""The quickstart as a user of plain TRL would write it: the yardstick for what our layer costs.

usage: plain_grpo.py MODEL_DIR OUTPUT_DIR STEPS
"""

import functools
import sys

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from rlhf_cli.data.worlds import generate
from rlhf_cli.rewards.length import length_ramp
from rlhf_cli.rewards.toy import digits_only, sums_correct

model_dir, output_dir, steps = sys.argv[1:]
trainer = GRPOTrainer(
    model=model_dir,
    reward_funcs=[sums_correct, digits_only, functools.partial(length_ramp, full=2, zero=16, unit="characters")],
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
        reward_weights=[1.0, 0.5, 0.2],
        use_cpu=True,
        bf16=False,
        seed=0,
    ),
    train_dataset=Dataset.from_list(generate("toy_sums", {"num_rows": 2000, "max_value": 20}, seed=0)),
)
trainer.train()
trainer.save_model(f"{output_dir}/model")
losses = [event["loss"] for event in trainer.state.log_history if "loss" in event]
print("losses", losses)
