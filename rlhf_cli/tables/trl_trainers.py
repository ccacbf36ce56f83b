"""List TRL's trainers and policy losses. `rlhf check` refuses a trainer without a row.
`trainer.class` runs a class that inherits from one with a row, and uses the row named by `trainer.trl`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

Normaliser = Literal["row", "rows", "max_length", "window", "micro-batch"]
"""What a loss divides the sum over tokens by: the tokens of each row, the number of rows, that number times the maximal
completion length, the tokens of the accumulation window, or the tokens of the micro-batch.
"""

POLICY_LOSSES: dict[str, Normaliser] = {
    **{"grpo": "row", "dr_grpo": "max_length", "dapo": "window", "bnpo": "micro-batch"},
    **{"cispo": "window", "sapo": "row", "luspo": "rows", "vespo": "window"},
}
"""`loss_type` -> what it divides by. A contract test compares the names with TRL's."""
CLIPPED_PPO_LOSSES = ("grpo", "dr_grpo", "dapo", "bnpo")  # those that are PPO's clipped loss with per-token advantages
SEQUENCE_LOSSES = ("luspo",)  # those that take one advantage per sequence

READ_BY_ALGORITHMS = ("scale_rewards", "normalize_advantages", "reward_clip_range")
"""The arguments of GRPO's and RLOO's trainers that shape their advantages."""


def too_short_for_all(rows: int, max_length: object, shortest: int, longest: int) -> dict[str, str]:
    """Return the parts of the error for a `max_length` that drops all rows, which have these numbers of tokens."""
    return {
        "what": f"max_length drops all {rows} rows",
        "got": f"trainer.args.max_length={max_length}, and rows of {shortest} to {longest} tokens",
        "expected": f"at least {shortest} for the shortest row, {longest} for all of them",
        "hint": f"trainer.args.max_length={longest}",
    }


def data_key(name: str) -> str:
    """Return the key of data by TRL's name of it: `train`, `eval`, or the name of an evaluation set."""
    return {"train": "data", "eval": "data.eval", "": "data.eval"}.get(name, f"data.eval.{name}")


TEXT = "text"  # the column that SFTTrainer reads plain text from; `trainer.args.dataset_text_field` may name another

IMAGES = ("image", "images")  # the columns that TRL takes for images: one, or a list

ColumnSet = tuple[str, ...]


@dataclass(frozen=True)
class TrainerRow:
    """A trainer. Those that generate score completions by rewards; the others train on rows.

    `module`: where to import the class and its config class (`GRPOConfig`). `algorithm`: what makes its advantages
    (trainers/assemble/algorithm.py), None for a trainer that learns from rows. `learns_from`: the column sets that it
    can train on, the first that is present is used; `expected_columns`: the same in words. `along`: the columns that it
    reads beside such a set. `sections`: those of our configuration that not all trainers use. `advantages`: per
    completion or per token, None if it has none. `kl_in_reward`: its argument `beta` puts a KL divergence into the
    rewards. `trains`: the kind of model. `measured`: the columns that give the length of a row prepared by TRL: those
    at its start, and alternatives whose longest counts; None if TRL does not prepare rows. `splits_pairs`: a pair of
    answers becomes two rows. `loss_divisor`: what its loss divides by, None if its argument `loss_type` decides.
    `texts_per_row`: the texts that a row of the data puts through the model. `bounds_logits`: its loss never holds the
    logits of all tokens at once. `copies_policy`: it loads a copy of the policy as reference. `has_tools`: its
    constructor takes tools, environments and a rollout function. `answers_up_to`: the argument that limits the answers
    it generates itself, scored by no reward; None if it generates none. `same_vocabulary`: its teacher must have as
    many tokens as the policy. `adds_ends`: it begins and ends a row with a token.
    """

    name: str
    module: str = "trl"
    algorithm: str | None = None
    learns_from: tuple[ColumnSet, ...] = ()
    expected_columns: str = ""
    along: ColumnSet = ()
    sections: frozenset[str] = frozenset()
    advantages: Literal["completion", "token"] | None = None
    kl_in_reward: bool = False
    trains: Literal["language model", "reward model"] = "language model"
    measured: tuple[ColumnSet, ColumnSet] | None = None
    splits_pairs: bool = False
    loss_divisor: Normaliser | None = None
    texts_per_row: int = 1
    bounds_logits: bool = False
    copies_policy: bool = False
    has_tools: bool = False
    answers_up_to: str | None = None
    same_vocabulary: bool = False
    adds_ends: bool = False

    @property
    def generates(self) -> bool:
        """Return whether the trainer generates completions, which rewards score."""
        return self.algorithm is not None

    @property
    def reads_prompts(self) -> bool:
        """Return whether it answers the column `prompt`, so that a prompt must leave room for an answer."""
        return self.generates or (self.answers_up_to is not None and self.learns_from[0][0] == "prompt")

    @property
    def config_class(self) -> str:
        """Return the name of the dataclass with its arguments."""
        return self.name.removesuffix("Trainer") + "Config"

    @property
    def can_have_critic(self) -> bool:
        """Return whether PPO is built on it: on its rollouts and its clipped loss."""
        return "critic" in self.sections


TEMPLATE = ("tools", "chat_template_kwargs")  # columns that a chat template gets beside the messages
_DIALOGUES = (("messages",), ("conversations",))
_PAIR, _PAIR_IDS = ("chosen", "rejected"), ("chosen_ids", "rejected_ids")
_REWARDED = frozenset({"rewards", "truncation"})
_PPO_TOO = _REWARDED | {"critic", "kl"}
_EXPERIMENTAL = "trl.experimental."

_sampling = partial(TrainerRow, algorithm="grpo", sections=_REWARDED, bounds_logits=True, loss_divisor="rows")
_pairing = partial(
    TrainerRow,
    texts_per_row=2,
    learns_from=(_PAIR,),
    expected_columns="chosen and rejected, and a prompt unless both begin with it",
    along=("prompt", "chat_template_kwargs"),
)
_taught = partial(TrainerRow, sections=frozenset({"teacher"}), answers_up_to="max_completion_length")

_ROWS = (
    _sampling("GRPOTrainer", along=IMAGES, advantages="token", sections=_PPO_TOO, has_tools=True, loss_divisor=None),
    _sampling("RLOOTrainer", along=IMAGES, algorithm="rloo", advantages="completion", kl_in_reward=True),
    _sampling("GMPOTrainer", f"{_EXPERIMENTAL}gmpo", advantages="completion", has_tools=True),
    TrainerRow(
        "SFTTrainer",
        bounds_logits=True,
        learns_from=(("prompt", "completion"), *_DIALOGUES, (TEXT,), ("input_ids",)),
        expected_columns="prompt and completion, or messages, or text",
        along=(*TEMPLATE, *IMAGES, "labels", "completion_mask", "assistant_masks"),
        measured=((), ("input_ids",)),
    ),
    _pairing(
        "DPOTrainer",
        bounds_logits=True,
        copies_policy=True,
        along=("prompt", *TEMPLATE, *IMAGES),
        measured=(("prompt_ids",), _PAIR_IDS),
    ),
    _pairing("ORPOTrainer", f"{_EXPERIMENTAL}orpo", adds_ends=True),
    _pairing("CPOTrainer", f"{_EXPERIMENTAL}cpo", adds_ends=True),
    TrainerRow(
        "TPOTrainer",
        f"{_EXPERIMENTAL}tpo",
        texts_per_row=3,
        learns_from=((*_PAIR, "reference"),),
        expected_columns="chosen, rejected and reference (the right answer), and a prompt unless all begin with it",
        along=("prompt", *TEMPLATE),
        measured=(("prompt_ids",), (*_PAIR_IDS, "reference_ids")),
    ),
    TrainerRow(
        "KTOTrainer",
        bounds_logits=True,
        copies_policy=True,
        learns_from=(("prompt", "completion", "label"), _PAIR),
        expected_columns="prompt, completion and label (true or false), or chosen and rejected with their prompt",
        along=("prompt", *TEMPLATE),
        measured=(("prompt_ids",), ("completion_ids",)),
        splits_pairs=True,
    ),
    _pairing(
        "RewardTrainer",
        learns_from=(_PAIR, _PAIR_IDS),
        along=("prompt", "margin", *TEMPLATE),
        sections=frozenset({"reward_model"}),
        trains="reward model",
        measured=((), _PAIR_IDS),
    ),
    _taught(
        "DistillationTrainer",
        bounds_logits=True,
        learns_from=(("prompt",),),
        expected_columns="prompt",
        along=("chat_template_kwargs",),
        same_vocabulary=True,
    ),
    _taught(
        "GKDTrainer",
        f"{_EXPERIMENTAL}gkd",
        learns_from=_DIALOGUES,
        expected_columns="messages that end with the assistant's",
        answers_up_to="max_new_tokens",
        same_vocabulary=True,
    ),
    _taught(
        "GOLDTrainer",
        f"{_EXPERIMENTAL}gold",
        learns_from=(("prompt", "completion"), *_DIALOGUES),
        expected_columns="prompt and completion, or messages",
        along=("chat_template_kwargs",),
        measured=((), ("input_ids",)),
    ),
    _taught(
        "IWOPDTrainer",
        f"{_EXPERIMENTAL}iw_opd",
        learns_from=_DIALOGUES,
        expected_columns="messages; the assistant's last one is replaced by an answer of the policy",
    ),
    TrainerRow(
        "SDFTTrainer",
        f"{_EXPERIMENTAL}sdft",
        copies_policy=True,
        learns_from=(("prompt", "privileged_context"),),
        expected_columns="prompt, and privileged_context: what the policy as its own teacher reads beside it",
        answers_up_to="max_completion_length",
    ),
)

TRAINERS: dict[str, TrainerRow] = {row.name: row for row in _ROWS}  # class name -> row


class Unsupported(NamedTuple):
    """A trainer of TRL's that rlhf does not run: `why`, and what to type `instead` that comes nearest to it."""

    why: str
    instead: str


_OWN_REWARDS = "it scores its answers in a way of its own, where no named reward, gate or truncation policy applies"
_SERVER = "its teacher or its rollouts are on a vLLM server with a protocol of its own"
_KERNEL = "it needs a FlashAttention-3 kernel from the hub, and its rewards run where no other reward is seen"
UNSUPPORTED: dict[str, Unsupported] = {
    "A2POTrainer": Unsupported(_OWN_REWARDS, "trainer=grpo"),
    "OnlineDPOTrainer": Unsupported(
        _OWN_REWARDS, "rlhf generate RUN, whose pairs trainer=dpo learns from; or trainer=grpo"
    ),
    "SDPOTrainer": Unsupported(_OWN_REWARDS, "trainer=sdft, or trainer=grpo"),
    "ServerDistillationTrainer": Unsupported(_SERVER, "trainer=distillation"),
    "AsyncDistillationTrainer": Unsupported(_SERVER, "trainer=distillation"),
    "AsyncGRPOTrainer": Unsupported(_KERNEL, "trainer=grpo launch.rollout=vllm_server"),
}
"""Class name -> why it is refused. `tests/tables` holds both tables against TRL's classes."""
