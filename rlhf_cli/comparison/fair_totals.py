"""Check whether the totals of runs are the same sum, and parse `--weights`, which makes them so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rlhf_cli.comparison.logged_run import LoggedRun, reward_names
from rlhf_cli.comparison.what_differs import differences, is_seed
from rlhf_cli.errors import UserError
from rlhf_cli.suggest import nearest

_MAKES_THE_TOTAL = ("rewards.", "primary", "aggregate", "truncation.")
_MAKES_THE_SCORE = ("fn", "model", "args", "offset", "clip", "gate", "with_eos", "max_length", "on_error")


def why_no_total(runs: Sequence[LoggedRun]) -> str | None:
    """Return why the totals of these runs are not comparable, or None if they are the same sum.

    A total depends on its weights: with other weights the same answers have another total.
    """
    different = [key for key in differences(runs) if key.startswith(_MAKES_THE_TOTAL) and not is_seed(key)]
    if not different:
        return None
    weights = [key for key in different if key.split(".")[-1] == "weight" or ".weight." in key]
    shown = ", ".join((weights or different)[:3]) + (" and more" if len(weights or different) > 3 else "")
    verb = "differs" if len(weights or different) == 1 else "differ"
    return f"no total: {shown} {verb}, so the same answers would have other totals"


def other_scores(runs: Sequence[LoggedRun]) -> list[str]:
    """Return one sentence per component whose score is defined differently between runs: other code or arguments."""
    said = []
    different = differences(runs)
    for name in reward_names(runs):
        prefix = f"rewards.{name}."
        keys = [key for key in different if key.startswith(prefix) and key.split(".")[2] in _MAKES_THE_SCORE]
        if keys and all(name in run.weights for run in runs):
            said.append(f"{name} is not the same reward in all runs: {', '.join(keys[:3])} differs")
    return said


def parse_weights(text: str, runs: Sequence[LoggedRun]) -> dict[str, float]:
    """Return reward -> weight of `a=1,b=0.2`. Raise UserError for an unknown reward or an invalid number."""
    names = reward_names(runs)
    weights: dict[str, float] = {}
    for part in text.split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if name not in names:
            raise UserError(
                "no run has such a reward",
                where="--weights",
                got=name or text,
                expected=", ".join(names) or "runs that have rewards",
                hint=nearest(name, names) or f"--weights {','.join(f'{name}=1' for name in names)}",
            )
        try:
            weights[name] = float(value)
        except ValueError:
            raise UserError(
                "a weight is a number", where=f"--weights {name}", got=value if equals else part, hint=f"{name}=1"
            ) from None
    return weights


def in_words(weights: Mapping[str, float]) -> str:
    """Return the sum that the weights define: `1 correct + 0.2 brevity`."""
    terms = " ".join(f"{'-' if weight < 0 else '+'} {abs(weight):g} {name}" for name, weight in weights.items())
    return terms.removeprefix("+ ")


def lacking(weights: Mapping[str, float], runs: Sequence[LoggedRun]) -> list[str]:
    """Return one sentence per run that lacks a weighted component and so has no total."""
    said = []
    for run in runs:
        missing = [name for name in weights if f"rewards/{name}/mean" not in run.metrics]
        if missing:
            said.append(f"{run.name} has logged no {', '.join(missing)}: without a total")
    return said
