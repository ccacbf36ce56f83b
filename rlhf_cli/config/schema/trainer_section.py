"""Defines the section `trainer`: which trainer runs, and the arguments of it that the user sets."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlhf_cli.config.schema.ppo_sections import PpoArgs
from rlhf_cli.config.schema.section import Section
from rlhf_cli.tables.generation_modes import GenerationSetting
from rlhf_cli.tables.pass_modes import PassSetting
from rlhf_cli.tables.trl_trainers import TRAINERS, TrainerRow


class Trainer(Section):
    """The trainer that runs: a class of TRL's, and the arguments of its config class that the user sets.

    `name` is what screens and messages call it, `trl` the class in TRL. `class` (`./mine.py:MyGRPO`) is a class of the
    user's that inherits from `trl` and runs in its place; null runs `trl` itself. `args` are fields of TRL's config
    class, and with a critic those of `PpoArgs`. `dense` lets a dense reward act on its own tokens; false sums it to one
    number a row. `baseline` is what a completion's reward is held against: the others of its prompt, or a critic (PPO).
    `passes` is how rows go through the models of a trainer that generates: `auto` is the fastest way that they can go
    (`packed`: no padding, each prompt once; `trimmed`: sorted by length, less padding), `plain` is TRL's own, and so is
    its generation.
    `generation` is how completions are generated where vLLM does not: `auto` decodes rows until they end, `plain` is
    transformers' own loop, which decodes all until the longest ends.
    """

    name: str
    trl: str
    own_class: str | None = Field(default=None, alias="class")
    args: dict[str, object] = Field(default_factory=dict)
    dense: bool = False
    generation: GenerationSetting = "auto"
    baseline: Literal["group", "critic"] = "group"
    passes: PassSetting = "auto"

    @property
    def row(self) -> TrainerRow:
        """Return what is known of the trainer. Raises KeyError for one without a row, which the referee has refused."""
        return TRAINERS[self.trl]

    @property
    def ppo(self) -> PpoArgs | None:
        """Return PPO's own arguments, None without a critic."""
        if self.baseline != "critic":
            return None
        return PpoArgs.model_validate(
            {name: value for name, value in self.args.items() if name in PpoArgs.model_fields}
        )

    @property
    def disables_dropout(self) -> bool:
        """Return whether nothing is dropped in any pass: where `args` say so, and with a critic unless they say no."""
        return bool(self.args.get("disable_dropout", self.baseline == "critic"))

    @property
    def trl_args(self) -> dict[str, object]:
        """Return the part of `args` that is for TRL's config class."""
        if self.baseline != "critic":
            return self.args
        return {name: value for name, value in self.args.items() if name not in PpoArgs.model_fields}
