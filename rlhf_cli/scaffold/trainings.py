"""List the trainings for a new project, each with its kind of rows and reasonable initial numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rlhf_cli.errors import ConfigError
from rlhf_cli.suggest import nearest

RowKind = Literal["prompts", "pairs", "judged", "demonstrations"]
"""Prompts to answer, pairs of a better and a worse answer, answers judged good or bad, prompts with good answers."""


@dataclass(frozen=True)
class Training:
    """A trainer of conf/trainer, for a new project.

    `what` completes the sentence "train ..." of a question. `tiny_rate` is the learning rate for the embedded model of
    0.15 M parameters, `rate` the initial one for a real model: for policies trained on rewards, that of the GRPO paper
    (arXiv 2402.03300), otherwise that of TRL's examples.
    """

    name: str
    what: str
    rows: RowKind
    tiny_rate: str
    rate: str
    steps: int = 60

    @property
    def generates(self) -> bool:
        """Return whether it generates answers, which rewards score."""
        return self.rows == "prompts"


_ROWS = (
    Training("grpo", "a policy by rewards of yours, answers compared in groups", "prompts", "1.0e-3", "1.0e-6"),
    Training("rloo", "a policy by rewards, each answer against the others (RLOO)", "prompts", "1.0e-3", "1.0e-6"),
    Training("ppo", "a policy by rewards, with a critic (PPO)", "prompts", "3.0e-4", "1.0e-6", steps=160),
    Training("sft", "a model on demonstrations: prompts with good answers", "demonstrations", "6.0e-3", "2.0e-5", 200),
    Training("dpo", "a policy on pairs of a better and a worse answer (DPO)", "pairs", "5.0e-4", "1.0e-6"),
    Training("orpo", "the same without a reference model (ORPO)", "pairs", "5.0e-4", "1.0e-6"),
    Training("cpo", "the same with a supervised term (CPO)", "pairs", "5.0e-4", "1.0e-6"),
    Training("kto", "a policy on single answers, each judged good or bad (KTO)", "judged", "5.0e-4", "1.0e-6"),
    Training("reward", "a reward model on pairs of a better and a worse answer", "pairs", "1.0e-3", "1.0e-5"),
)

TRAININGS: dict[str, Training] = {row.name: row for row in _ROWS}
"""Maps a name, as in `trainer=NAME`, to its training, in display order."""

_OTHER_WORDS = {"reward model": "reward", "reward-model": "reward", "reward_model": "reward", "rm": "reward"}


def training_named(word: str, *, is_answer: bool = False) -> Training:
    """Return the training for a typed word. Raises ConfigError for an unknown one.

    `is_answer` is True if the word answers a question, where naming a flag would not help.
    """
    name = _OTHER_WORDS.get(word.lower(), word.lower())
    if name in TRAININGS:
        return TRAININGS[name]
    close = nearest(name, TRAININGS)
    raise ConfigError(
        f"a new project cannot train {word!r}",
        where="trainer" if is_answer else "--trains",
        got=word,
        expected="one of " + ", ".join(TRAININGS),
        hint=f"{'' if is_answer else '--trains '}{close}" if close else "rlhf list trainer",
    )
