"""Check that the trainer uses every section that is set, and has every section that it needs."""

from __future__ import annotations

from collections.abc import Iterator

from rlhf_cli.config import trl_args
from rlhf_cli.config.origins import Origins
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.errors import UserError

_REWARDS = "named entries under `rewards:`, each with `fn`, `model` or `environment`"
_TEACHER = "a language model with the policy's tokens: a folder, a hub id or run:NAME"


def section_problems(experiment: Experiment, origins: Origins) -> Iterator[UserError]:
    """Yield an error for each section that is set and the trainer does not use, or that it needs and is not set."""
    trainer, launch, data = experiment.trainer, experiment.launch, experiment.data
    row, fields = trainer.row, trl_args.fields_of(trainer.trl)
    beta = "trainer.args.beta, TRL's own" if "beta" in fields else None
    itself = "the policy itself, by trainer.args.teacher_model_kind" if "teacher_model_kind" in fields else None
    policy, keep = experiment.truncation.policy, experiment.sampling.keep_groups
    rollout = launch.rollout if launch.rollout != "hf" else None
    overlong = data.overlong_prompts if data.overlong_prompts != "error" else None
    unused = [  # key, its value, whether the trainer uses it, what to type instead, what it has instead
        ("rewards", experiment.rewards, "rewards" in row.sections, "trainer=grpo, or '~rewards'", None),
        (
            "reward_model",
            experiment.reward_model,
            "reward_model" in row.sections,
            "trainer=reward, or '~reward_model'",
            None,
        ),
        ("critic", experiment.critic, trainer.has_critic, "trainer=ppo, or '~critic'", None),
        ("kl", experiment.kl, trainer.has_critic, "trainer=ppo, or '~kl'", beta),
        ("teacher", experiment.teacher, "teacher" in row.sections, "trainer=distillation, or '~teacher'", itself),
        ("tools", experiment.tools, row.has_tools, "trainer=grpo, or '~tools'", None),
        ("environment", experiment.environment, row.has_tools, "trainer=grpo, or '~environment'", None),
        ("rollout", experiment.rollout, row.has_tools, "trainer=grpo, or '~rollout'", None),
        ("truncation.policy", policy != "none", "truncation" in row.sections, "truncation=none", None),
        ("sampling.keep_groups", keep, row.generates, "trainer=grpo, or sampling.keep_groups=null", None),
        ("data.overlong_prompts", overlong, row.reads_prompts, "data.overlong_prompts=error", None),
        ("launch.rollout", rollout, row.generates, "launch.rollout=hf", None),
        ("launch.rollout_gpus", launch.rollout_gpus, row.generates, "launch.rollout_gpus=0", None),
        ("launch.vllm.args", launch.vllm.args, row.generates, "'~launch.vllm.args'", None),
    ]
    for key, value, is_used, hint, expected in unused:
        if value and not is_used:
            yield origins.error(key, f"trainer={trainer.name} does not use {key}", hint=hint, expected=expected)
    missing = [  # key, its value, whether the trainer needs it, what to type, what it is
        (
            "rewards",
            experiment.rewards,
            "rewards" in row.sections,
            "+exp=quickstart, or reward@rewards.short=brevity",
            _REWARDS,
        ),
        ("teacher", experiment.teacher, "teacher" in row.sections, "teacher.path=FOLDER_OR_HUB_ID", _TEACHER),
        ("critic", experiment.critic, trainer.has_critic, "trainer=ppo, or critic.init=policy", None),
        ("kl", experiment.kl, trainer.has_critic, "trainer=ppo, or kl.where=none", None),
    ]
    for key, value, is_needed, hint, expected in missing:
        if is_needed and not value:
            yield origins.error(key, f"trainer={trainer.name} needs {key}", hint=hint, expected=expected)
