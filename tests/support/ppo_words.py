"""What to type for PPO in tests of its rules."""

from __future__ import annotations

from collections.abc import Callable

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.errors import ConfigError

Judged = Callable[..., Experiment]
Refused = Callable[..., ConfigError]
QUICK = "exp=quickstart"
PPO = (QUICK, "trainer=ppo", "trainer.args.num_generations=1")
SHARED = (*PPO, "critic.share=lora", "model.lora.r=16")
