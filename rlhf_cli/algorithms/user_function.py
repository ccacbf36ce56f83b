"""Call the function in `advantages.fn`, which makes advantages of scores. Does not import torch.

The function takes those of these arguments that it names, for the N rows of all ranks, a prompt's rows one after
another:

- totals: (N,) weighted sums as in the log (`total`), NaN for a row without one.
- rewards: name -> (N,) settled scores (after offset, clip, normalize and gate), NaN where a reward does not apply.
- weights: name -> weight at this step.
- groups: (N,) number of the prompt in the round.
- counted: (N,) bool, False = the row has no total; its advantage is always set to 0.
- lengths: (N,) tokens of each completion.
- step: optimizer steps before this round.

It returns (N,) advantages, or N rows of one advantage per token (an array at least as wide as the longest completion,
or lists); or a pair of the advantages and a dict, name of a reward -> its part of them. It must depend on
its arguments alone: every rank calls it, and a resumed run starts without anything that it kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import TypeAlias

import numpy

from rlhf_cli.errors import RewardError, RewardFailed, described
from rlhf_cli.process import kept
from rlhf_cli.rewards.stack.reward_functions import WithArguments, import_function, parameters_of, required_parameters
from rlhf_cli.text.suggest import nearest

Array: TypeAlias = numpy.ndarray[tuple[int, ...], numpy.dtype[numpy.float64]]
Integers: TypeAlias = numpy.ndarray[tuple[int, ...], numpy.dtype[numpy.int64]]
_KEY = "advantages"
_SAME = 1e-6


@dataclass(frozen=True)
class ScoredRound:
    """The arguments that a function may take; see the module."""

    totals: Array
    rewards: Mapping[str, Array]
    weights: Mapping[str, float]
    groups: Integers
    counted: numpy.ndarray[tuple[int, ...], numpy.dtype[numpy.bool_]]
    lengths: Integers
    step: int


OFFERED = tuple(field.name for field in fields(ScoredRound))


@dataclass(frozen=True)
class Answer:
    """The advantages of a function, (N,) or (N, T), and its parts by reward; 0 for rows without a total and after each.

    `parts` is empty if the function returned none, or if they do not add up to the advantages. `lengths` (N,) are the
    tokens of each row.
    """

    advantages: Array
    lengths: Integers
    parts: Mapping[str, Array]
    gave_parts: bool = False

    @property
    def is_by_token(self) -> bool:
        """Return whether every token has an advantage of its own."""
        return self.advantages.ndim == 2

    @property
    def by_row(self) -> Array:
        """Return the (N,) advantages of the rows: the mean over a row's tokens if each has its own."""
        sums: Array = (
            self.advantages.sum(axis=1) / numpy.maximum(self.lengths, 1) if self.is_by_token else self.advantages
        )
        return sums


class AdvantageFunction:
    """A function of the user's with its `args`."""

    def __init__(self, fn: str, args: Mapping[str, object], *, place: Callable[[str], str] = str) -> None:
        """Import the function; `place` turns a key into its location, for errors.

        Raise RewardError if there is none, or if it does not take these arguments.
        """
        self.fn, where = fn, place(f"{_KEY}.fn")
        function = import_function(fn, where=where)
        parameters = parameters_of(function, fn, where)
        takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
        own = [name for name in parameters if name not in OFFERED]
        for name, value in args.items():
            if name in OFFERED or (name not in own and not takes_any):
                what = f"{fn} has no argument {name!r}" if name not in OFFERED else f"the trainer sets {name!r}"
                close, key, expected = nearest(name, own), f"{_KEY}.args.{name}", ", ".join(own) or "no arguments"
                hint = f"{_KEY}.args.{close}={value}" if close else f"'~{key}'"
                raise RewardError(what, where=place(key), got=value, expected=expected, hint=hint)
        missing = [name for name in required_parameters(parameters) if name not in {*OFFERED, *args}]
        if missing or not (takes_any or {"totals", "rewards"} & {*parameters}):
            what = f"{fn} needs an argument {missing[0]!r}" if missing else f"{fn} takes no scores"
            got, expected = f"{fn}({', '.join(parameters)})", "totals or rewards, and any of " + ", ".join(OFFERED)
            to_set = f"{_KEY}.args.{missing[0]}=VALUE" if missing else None
            raise RewardError(what, where=where, got=got, expected=expected, hint=to_set)
        self.function = WithArguments(function, **args)

    def __call__(self, scored: ScoredRound) -> Answer:
        """Return the advantages. Raise RewardFailed if the function raises, RewardError for an invalid result."""
        given = {name: getattr(scored, name) for name in OFFERED}
        try:
            with kept(given):
                returned = self.function(**given)
                advantages, parts = returned if isinstance(returned, tuple) else (returned, {})
                counted, lengths = scored.counted, scored.lengths
                found = _as_array(advantages, lengths)
                by_name = {name: _as_array(part, lengths) for name, part in dict(parts).items()}
        except Exception as error:  # user code: name it and show its traceback
            raise RewardFailed(f"{self.fn} failed", where=f"{_KEY}.fn", got=described(error)) from error
        longest = int(lengths.max(initial=0))
        is_by_token = found.ndim == 2 and len(found) == len(lengths) and found.shape[1] >= longest
        if found.shape != lengths.shape and not is_by_token:
            expected = f"({len(lengths)},), or rows of at least {longest} tokens"
            self._refuse("its advantages have another shape", f"{found.shape}", expected)
        for name, part in by_name.items():
            if name not in scored.rewards or part.shape != found.shape:
                expected = f"one of {', '.join(scored.rewards)}, of shape {found.shape}"
                self._refuse("it returned an unknown part", f"{name!r} of shape {part.shape}", expected)
        is_read = counted
        if is_by_token:
            is_read = counted[:, None] & (numpy.arange(found.shape[1]) < lengths[:, None])
        found, *parts_found = (numpy.where(is_read, values, 0.0) for values in (found, *by_name.values()))
        if not numpy.isfinite(found).all():
            row = int(numpy.argwhere(~numpy.isfinite(found))[0, 0])
            got = f"{found[row]} for row {row}, whose total is {scored.totals[row]:g}"
            self._refuse("an advantage is not a finite number", got, "finite numbers for rows with a total")
        off = numpy.abs(sum(parts_found, start=numpy.zeros_like(found)) - found).max(initial=0.0)  # of no tokens, 0
        adds_up = bool(off <= _SAME * numpy.abs(found).max(initial=0.0))
        parts = dict(zip(by_name, parts_found, strict=True)) if by_name and adds_up else {}
        return Answer(found, lengths, parts, gave_parts=bool(by_name))

    def _refuse(self, what: str, got: str, expected: str) -> None:
        raise RewardError(f"{self.fn}: {what}", where=f"{_KEY}.fn", got=got, expected=expected)


def _as_array(values: object, lengths: Integers) -> Array:
    """Return numbers as an array; lists of different lengths are padded with 0."""
    if isinstance(values, list) and values and isinstance(values[0], list):
        width = max(map(len, values))
        if any(len(row) < length for row, length in zip(values, lengths, strict=True)):
            raise ValueError("a row has fewer advantages than tokens")
        values = [[*row, *[0.0] * (width - len(row))] for row in values]
    return numpy.asarray(values, dtype=numpy.float64)


def example_round(num_generations: int, names: Mapping[str, float]) -> ScoredRound:
    """Return two groups to try a function on: half of the scores are 1, and the last row has no total."""
    num_rows = 2 * num_generations
    scores = (numpy.arange(num_rows) % 2).astype(numpy.float64)
    counted = numpy.arange(num_rows) < num_rows - 1
    scores[~counted] = numpy.nan
    return ScoredRound(
        totals=scores * sum(names.values()),
        rewards={name: scores.copy() for name in names},
        weights=dict(names),
        groups=numpy.arange(num_rows) // num_generations,
        counted=counted,
        lengths=1 + numpy.arange(num_rows) % 3,
        step=0,
    )
