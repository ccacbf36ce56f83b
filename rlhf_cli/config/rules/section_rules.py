"""Check that the trainer uses every section that is set, and has every section that it needs."""

from __future__ import annotations

from collections.abc import Iterator

from rlhf_cli.config import trl_args
from rlhf_cli.config.origins import Origins
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.errors import UserError

_OF_A_CRITIC, _CALLED = {"critic", "kl"}, {"tools", "environment", "rollout"}
_USER = {"rewards": "grpo", "reward_model": "reward", "critic": "ppo", "kl": "ppo", "teacher": "distillation"}
_USER |= dict.fromkeys(sorted(_CALLED), "grpo")
"""Section -> a trainer that uses it."""
_NEEDED = {
    "rewards": ("+exp=quickstart, or reward@rewards.short=brevity", "entries with `fn`, `model` or `environment`"),
    "teacher": ("teacher.path=FOLDER_OR_HUB_ID", "a language model with the policy's tokens"),
    "critic": ("trainer=ppo, or critic.init=policy", "PPO's value model"),
    "kl": ("trainer=ppo, or kl.where=none", "PPO's penalty"),
}
"""Section that a trainer lacks if it uses it -> what to type, what it is."""
_INSTEAD = {"kl": "beta", "teacher": "teacher_model_kind"}
"""Section -> the argument that another trainer has instead."""


def section_problems(experiment: Experiment, origins: Origins) -> Iterator[UserError]:
    """Yield an error for each section that is set and the trainer does not use, or that it needs and is not set."""
    trainer, launch, row = experiment.trainer, experiment.launch, experiment.trainer.row
    used = row.sections - _OF_A_CRITIC
    used |= (_OF_A_CRITIC if trainer.has_critic else set()) | (_CALLED if row.has_tools else set())
    for name, user in _USER.items():
        what, argument = f"trainer={trainer.name} does not use the section `{name}`", _INSTEAD.get(name)
        if getattr(experiment, name) and name not in used:
            expected = f"trainer.args.{argument}" if argument in trl_args.fields_of(trainer.trl) else None
            yield origins.error(name, what, hint=f"trainer={user}, or '~{name}'", expected=expected)
        elif name in used and name in _NEEDED and not getattr(experiment, name):
            what, (hint, expected) = f"trainer={trainer.name} needs the section `{name}`", _NEEDED[name]
            yield origins.error(name, what, hint=hint, expected=expected)
    settings = [  # a key, its value, the usual one, and whether the trainer reads it
        ("truncation", experiment.truncation.policy, "none", "truncation" in used),
        ("sampling.keep_groups", experiment.sampling.keep_groups or "null", "null", row.generates),
        ("data.overlong_prompts", experiment.data.overlong_prompts, "error", row.reads_prompts),
        ("launch.rollout", launch.rollout, "hf", row.generates),
        ("launch.rollout_gpus", launch.rollout_gpus, 0, row.generates),
        ("launch.vllm.args", launch.vllm.args, {}, row.generates),
    ]
    for key, value, usual, is_read in settings:
        if value != usual and not is_read:
            hint = f"{key}={usual}" if usual != {} else f"'~{key}'"
            yield origins.error(key, f"trainer={trainer.name} does not use {key}", value, hint)
