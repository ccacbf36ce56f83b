"""Score each of the first rows with the right answer, an empty answer, and the prompt as an answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from rlhf_cli.audit.attack import prompt_text
from rlhf_cli.audit.audit_run import experiment_rows
from rlhf_cli.audit.prompts_seen import PromptsSeen, prompts_seen
from rlhf_cli.audit.reachable import unreachable
from rlhf_cli.audit.trial import GoldAnswers, Trial, open_trial
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.data.formats import Row
from rlhf_cli.errors import ModelError
from rlhf_cli.measure.scored_rows import ScoredRow

_ROWS_FOR_LENGTHS = 1000


@dataclass(frozen=True)
class TriedAnswer:
    """An answer that was scored: its kind (`gold`, `empty`, `echo`), its text, its rewards.

    `raw` maps reward -> score, or None; `errors` maps reward -> the error it raised.
    """

    kind: str
    text: str
    total: float | None
    raw: Mapping[str, float | None]
    errors: Mapping[str, str]


@dataclass(frozen=True)
class TriedRows:
    """The first rows of an experiment: prompts as the model sees them, and the rewards of some answers.

    `answers` are by row. If the policy's tokenizer is not available, `seen` is None and `why_not_seen` is the reason.
    `gold_source` and `gold_way` are the column and format of the right answers, or None.
    """

    seen: PromptsSeen | None
    why_not_seen: str | None
    prompts: list[str]
    gold_source: str | None
    gold_way: str | None
    answers: list[list[TriedAnswer]]
    left_out: Mapping[str, str]
    notes: tuple[str, ...]

    def as_json(self) -> dict[str, object]:
        """Return the object that `rlhf check --rows N --json` has under `rows`."""
        content = asdict(self)
        if self.seen is not None:
            content["seen"]["prompts"] = [{"text": one.text, "tokens": one.tokens} for one in self.seen.prompts]
            for one in content["seen"]["lengths"]:
                one["quantiles"] = {f"{share:g}": tokens for share, tokens in one["quantiles"].items()}
        return content


def try_rows(experiment: Experiment, count: int) -> TriedRows:
    """Score the first `count` rows. Raise DataError if there are no rows.

    A missing tokenizer is reported with the other results, because it depends on this machine.
    """
    rows = experiment_rows(experiment, max(count, _ROWS_FOR_LENGTHS))
    prompts = [prompt_text(row["prompt"]) for row in rows[:count]]
    left_out = unreachable(experiment)
    if len(left_out) == len(experiment.rewards):
        seen, why = _seen(experiment, rows, count, [])
        return TriedRows(seen, why, prompts, None, None, [], left_out, ())
    with open_trial(experiment, rows, left_out=left_out, gold=None) as trial:
        golds = [answer for answer in trial.gold.answers if answer is not None] if trial.gold is not None else []
        seen, why = _seen(experiment, rows, count, golds)
        gold = trial.gold_answers(is_costly=True, first=count)
        answers = _tried(trial, gold, prompts)
        source, way = (trial.gold.source, gold.way.name) if trial.gold is not None and gold.texts else (None, None)
        return TriedRows(seen, why, prompts, source, way, answers, left_out, tuple(trial.notes))


def _seen(
    experiment: Experiment, rows: list[Row], count: int, golds: list[str]
) -> tuple[PromptsSeen | None, str | None]:
    try:
        return prompts_seen(experiment, [row["prompt"] for row in rows], shown=count, answers=golds), None
    except ModelError as error:
        return None, str(error)


def _tried(trial: Trial, gold: GoldAnswers, prompts: list[str]) -> list[list[TriedAnswer]]:
    texts: list[tuple[str, int, str]] = []
    for row, prompt in enumerate(prompts):
        if row in gold.texts:
            texts.append(("gold", row, gold.texts[row]))
        texts += [("empty", row, ""), ("echo", row, prompt)]
    scores = trial.scored([(row, text) for _, row, text in texts])
    answers: list[list[TriedAnswer]] = [[] for _ in prompts]
    for (kind, row, text), scored in zip(texts, scores, strict=True):
        answers[row].append(_answer(kind, text, scored))
    return answers


def _answer(kind: str, text: str, scored: ScoredRow) -> TriedAnswer:
    return TriedAnswer(
        kind=kind,
        text=text,
        total=scored.total,
        raw={name: one.raw for name, one in scored.rewards.items()},
        errors={name: one.error for name, one in scored.rewards.items() if one.error is not None},
    )
