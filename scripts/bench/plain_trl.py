"""Train by GRPO or RLOO with plain TRL, to compare our overhead with.

usage: plain_trl.py grpo|rloo MODEL_DIR STEPS OUTPUT_DIR

It trains on the folder `rows` of the working directory with the reward of first_step.py.
"""

import sys

import trl
from datasets import load_dataset
from marked_steps import correct

name, model_dir, steps, output_dir = sys.argv[1:]
trainer = getattr(trl, f"{name.upper()}Trainer")(
    model=model_dir,
    args=getattr(trl, f"{name.upper()}Config")(
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
        use_cpu=True,
        bf16=False,
        seed=0,
    ),
    reward_funcs=[correct],
    train_dataset=load_dataset("rows", split="train"),
)
trainer.train()
trainer.save_model(f"{output_dir}/model")
