"""What to type for a run that is kept small, and the model that it begins with."""

from __future__ import annotations

from pathlib import Path

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.runs.run_folder import RunFolder

SMALL = [
    *("+exp=quickstart", "model.build.hidden_size=16", "model.build.num_layers=1", "model.build.warm_start=null"),
    *("trainer.args.max_steps=3", "trainer.args.per_device_train_batch_size=8"),
    *("trainer.args.num_generations=4", "trainer.args.max_completion_length=4"),
    *("data.args.num_rows=64", "launch=cpu", "track=none"),
]
PPO_SMALL = [
    *("trainer=ppo", "trainer.args.num_generations=1", "trainer.args.steps_per_generation=2"),
    *("trainer.args.num_iterations=1", "trainer.args.learning_rate=0.001", "critic.learning_rate=0.001"),
]
"""On top of SMALL: PPO, rounds of two minibatches of eight rows, each learned from once."""


def starting_model(folder: RunFolder) -> Path:
    """The embedded model that a run began with; other runs of the session may have made others."""
    from rlhf_cli.models.tiny import tiny_model_path  # torch comes with it

    model = Experiment.model_validate(folder.read_config()).model
    assert model.build is not None
    return tiny_model_path(model.build.model_dump(), list, lambda step, steps: None)
