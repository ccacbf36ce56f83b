"""A reward model as a user of plain TRL would train it: the yardstick for what our layer costs.

usage: plain_reward.py MODEL_DIR STEPS OUTPUT_DIR
"""

import sys

from datasets import Dataset
from trl import RewardConfig, RewardTrainer

from rlhf_cli.data.worlds import generate

model_dir, steps, output_dir = sys.argv[1:]
rows = generate("toy_preferences", {"num_rows": 4000, "max_value": 20}, seed=0)
trainer = RewardTrainer(
    model=model_dir,
    args=RewardConfig(
        output_dir=output_dir,
        max_steps=int(steps),
        per_device_train_batch_size=64,
        max_length=96,
        learning_rate=1e-3,
        warmup_steps=20,
        gradient_checkpointing=False,
        logging_steps=1,
        save_steps=100,
        save_total_limit=2,
        report_to="none",
        use_cpu=True,
        bf16=False,
        seed=0,
    ),
    train_dataset=Dataset.from_list(rows).remove_columns(["score_chosen", "score_rejected"]),
)
trainer.train()
trainer.save_model(f"{output_dir}/model")
losses = [event["loss"] for event in trainer.state.log_history if "loss" in event]
print("losses", losses)
