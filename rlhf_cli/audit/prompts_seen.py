"""Show prompts as the model sees them, and their lengths, with the chat template applied and special tokens visible.

Does not import torch; loading a tokenizer takes `transformers` about a second. The steps are those of TRL's rollouts: a
text is tokenised unchanged (with the tokenizer's prefix tokens), a conversation is rendered by the chat template with
`add_generation_prompt=True` and `trainer.args.chat_template_kwargs`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from rlhf_cli.config import trl_args
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.errors import ModelError, Prose, UserError
from rlhf_cli.evaluate.policy_tokenizer import policy_tokenizer
from rlhf_cli.measure.component_statistics import QUANTILES, quantiles

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class SeenPrompt:
    """A prompt as decoded tokens: (text, whether it is a special token)."""

    pieces: tuple[tuple[str, bool], ...]
    tokens: int

    @property
    def text(self) -> str:
        """Return the whole text, including special tokens."""
        return "".join(text for text, _ in self.pieces)


@dataclass(frozen=True)
class Lengths:
    """The token counts of many texts: quantile (0 is the minimum, 1 the maximum) -> tokens."""

    of: str
    count: int
    quantiles: Mapping[float, float]


@dataclass(frozen=True)
class PromptsSeen:
    """The first prompts as the model sees them, and the lengths of all prompts read."""

    prompts: list[SeenPrompt]
    lengths: list[Lengths]
    ends_with: str
    """The end-of-sequence token, which ends an answer."""


def prompts_seen(
    experiment: Experiment, prompts: Sequence[object], *, shown: int, answers: Sequence[str] = ()
) -> PromptsSeen:
    """Return the first `shown` prompts as tokens, and the lengths of all prompts and of the right answers.

    Raise ModelError if the policy's tokenizer cannot be loaded, or if it has no chat template for conversations.
    """
    tokenizer = policy_tokenizer(experiment, wanted_by="a prompt as the model sees it")
    args = experiment.trainer.trl_args
    settings = trl_args.setting(trl_args.trainer(experiment.trainer.trl), args, "chat_template_kwargs")
    ids = _encoded(tokenizer, prompts, settings if isinstance(settings, Mapping) else {})
    lengths = [_lengths("prompts", [len(one) for one in ids])]
    if answers:
        counted = tokenizer(list(answers), add_special_tokens=False, verbose=False)["input_ids"]
        lengths.append(_lengths("right answers", [len(one) for one in counted]))
    return PromptsSeen([_seen(tokenizer, one) for one in ids[:shown]], lengths, str(tokenizer.eos_token))


def _encoded(
    tokenizer: PreTrainedTokenizerBase, prompts: Sequence[object], settings: Mapping[str, object]
) -> list[list[int]]:
    if isinstance(prompts[0], str):
        return [list(ids) for ids in tokenizer(list(prompts), verbose=False)["input_ids"]]
    if tokenizer.chat_template is None:
        raise ModelError(
            "the model has no chat template, and the rows are conversations",
            where="model.path",
            got=str(tokenizer.name_or_path),
            hint=Prose(
                "plain prompts (data.prompt='{question}'), or model.tokenizer=FOLDER_OR_HUB_ID of its chat model"
            ),
        )
    render: Callable[..., object] = tokenizer.apply_chat_template  # its return type depends on the arguments
    asked = {"add_generation_prompt": True, "tokenize": True, "return_dict": True, **settings}
    try:
        rendered = cast("Mapping[str, list[list[int]]]", render(list(prompts), **asked))
    except Exception as error:  # a template can raise anything: jinja2's errors, ValueError
        if isinstance(error, UserError):
            raise
        raise ModelError(
            "the chat template does not take these conversations",
            where="model.path",
            got=f"{type(error).__name__}: {error}",
            expected=f"roles and contents that {tokenizer.name_or_path} knows",
        ) from error
    return [list(ids) for ids in rendered["input_ids"]]


def _seen(tokenizer: PreTrainedTokenizerBase, ids: list[int]) -> SeenPrompt:
    """Return the tokens as text; decode consecutive ordinary tokens together, because a character may span several."""
    special = set(tokenizer.all_special_ids)
    pieces: list[tuple[str, bool]] = []
    run: list[int] = []
    for token in [*ids, None]:
        if token is not None and token not in special:
            run.append(token)
            continue
        if run:
            pieces.append((str(tokenizer.decode(run)), False))
            run = []
        if token is not None:
            pieces.append((str(tokenizer.decode([token])), True))
    return SeenPrompt(tuple(pieces), len(ids))


def _lengths(of: str, counts: list[int]) -> Lengths:
    return Lengths(of, len(counts), dict(zip(QUANTILES, quantiles(counts), strict=True)))
