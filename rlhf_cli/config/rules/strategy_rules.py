"""Checks an experiment against `launch.strategy`; tables/strategies.py lists what does not work."""

from __future__ import annotations

from collections.abc import Iterator

from rlhf_cli.config.origins import Origins
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.errors import ConfigError, UserError
from rlhf_cli.tables.strategies import STRATEGIES, Feature


def strategy_problems(experiment: Experiment, origins: Origins) -> Iterator[UserError]:
    """Yield every feature of the experiment that does not work with its strategy, with an alternative."""
    row = STRATEGIES[experiment.launch.strategy]
    there = features(experiment)
    without_file = "launch.accelerate_config=null " if experiment.launch.accelerate_config is not None else ""
    for conflict in row.conflicts:
        if conflict.feature in there:
            key = there[conflict.feature]
            yield ConfigError(
                f"{conflict.feature} does not work with launch.strategy={row.name}",
                where=origins.where(key),
                got=f"{key} and {origins.where('launch.strategy')}",
                expected=f"something else: {conflict.why}",
                hint=conflict.instead.replace("launch.strategy=", f"{without_file}launch.strategy="),
            )


def features(experiment: Experiment) -> dict[Feature, str]:
    """Return feature -> the key that enables it, for the features that some strategy does not support."""
    there: dict[Feature, str] = {}
    critic = experiment.critic
    if critic is not None and critic.share == "lora":
        there["critic.share=lora"] = "critic.share"
    if critic is not None and critic.warmup_steps:
        there["critic.warmup_steps"] = "critic.warmup_steps"
    if experiment.model.quantize is not None:
        there["model.quantize"] = "model.quantize"
    if experiment.trainer.args.get("sync_ref_model") is True:
        there["sync_ref_model"] = "trainer.args.sync_ref_model"
    if experiment.launch.rollout == "continuous":
        there["rollout=continuous"] = "launch.rollout"
    if experiment.launch.offload:
        there["offload"] = "launch.offload"
    return there
