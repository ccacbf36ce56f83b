"""Defines an experiment: all sections of a configuration. TRL's own arguments live in `trainer.args` (see trl_args.py).

It is strict: an unknown key or a wrong type is an error. A weight is a number, a name is a string, `yes` is no boolean.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from rlhf_cli.config.schema.data_section import Data
from rlhf_cli.config.schema.expect_section import Expectations, checked_expectations
from rlhf_cli.config.schema.launch_section import Launch
from rlhf_cli.config.schema.model_section import Model
from rlhf_cli.config.schema.ppo_sections import Critic, Kl
from rlhf_cli.config.schema.reward_model_section import RewardModel
from rlhf_cli.config.schema.reward_section import Gate, Reward
from rlhf_cli.config.schema.run_sections import Guards, Profile, Run, Track
from rlhf_cli.config.schema.section import Section
from rlhf_cli.config.schema.stop_section import StopRules, checked_rules
from rlhf_cli.config.schema.sweep_section import Sweep
from rlhf_cli.config.schema.trainer_section import Trainer
from rlhf_cli.config.schema.truncation_section import Truncation
from rlhf_cli.config.schema.warn_section import Warn, all_switches


class Experiment(Section):
    """An experiment, which holds everything one run needs to know.

    `seed` begins every random number of the run. `rewards` maps names to rewards. `primary` gates every other reward,
    null for none. `aggregate` says how rewards become one total: `sum`, `normalize_then_sum` or a function of the
    user's. `profile` says what is measured of where the time goes: `phases`, the share of each phase in every log
    event; `trace`, with that a few steps as torch's profiler sees them; `off`, nothing. The sections `critic`, `kl` and
    `reward_model` are null where the trainer reads no such section; `sweep` is null where `rlhf train -m` makes a grid
    and no search, and in every run of a sweep.
    """

    seed: int = Field(ge=0, lt=2**32)
    trainer: Trainer
    model: Model
    data: Data
    rewards: dict[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")], Reward] = Field(
        default_factory=dict
    )
    primary: Gate | None = None
    aggregate: str = "sum"
    critic: Critic | None = None
    kl: Kl | None = None
    reward_model: RewardModel | None = None
    truncation: Truncation = Truncation()
    guards: Guards = Guards()
    stop: Annotated[StopRules, BeforeValidator(checked_rules)] = None
    expect: Annotated[Expectations, BeforeValidator(checked_expectations)] = None
    warn: Annotated[Warn, BeforeValidator(all_switches)] = Warn()
    profile: Profile = "phases"
    launch: Launch
    track: Track
    run: Run
    sweep: Sweep | None = None
