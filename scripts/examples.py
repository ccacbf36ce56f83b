"""Print the worked examples of the documents from the code that runs experiments: `make examples`.

Every number comes from the functions that a training calls, except GRPO's own baseline (TRL's: a row's total minus the
mean of its group). tests/house/test_examples.py compares the documents with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from rlhf_cli.algorithms.ppo import Ppo, Rollout, without_last
from rlhf_cli.algorithms.rloo import Rloo
from rlhf_cli.rewards.stack.component import Component, ScoreGate
from rlhf_cli.rewards.stack.returned_scores import place_spans
from rlhf_cli.rewards.stack.reward_matrix import Settled, SettleRules, add_truncation, last_token_rewards, settle
from rlhf_cli.rewards.stack.reward_stack import RewardStack
from rlhf_cli.truncation import Bootstrap, Endings, EosPenalty, TruncationPolicy

GROUP = 4
A, B = [1.0, 0.0, 1.0, 0.0], [0.5, 0.7, 0.1, 0.9]
"""Scores of a group; b is not called for the second and the fourth row."""

VALUES, LAST_VALUE, SCORE = [0.2, 0.4, 0.5], 0.6, 1.0
"""A truncated answer of three tokens: the critic's values before each token and after the last, and its score."""

POLICIES = {
    "`none`": TruncationPolicy(),
    "`eos_penalty`, `penalty=1`": EosPenalty(),
    "`eos_penalty`, `mode=replace`": EosPenalty(mode="replace"),
    "`bootstrap`, `mode=add`": Bootstrap(),
    "`bootstrap`, `mode=replace`": Bootstrap(mode="replace"),
}


def number(value: float | None) -> str:
    """Return at most three decimals with a real minus sign, and a dash for None."""
    if value is None or value != value:
        return "–"
    text = f"{value:.3f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text.replace("-", "−")


def numbers(values: Sequence[float | None]) -> str:
    """Return the numbers separated by commas."""
    return ", ".join(number(value) for value in values)


def settled_of(components: Sequence[Component], num_rows: int) -> Settled:
    """Return the settled rewards of one group."""
    stack = RewardStack(components)
    try:
        outcomes = stack.evaluate(prompts=["p"] * num_rows, completions=["c"] * num_rows, row=list(range(num_rows)))
    finally:
        stack.close()
    raw, fixed = (
        torch.tensor([[float("nan") if value is None else value for value in column] for column in columns]).double().T
        for columns in (
            [outcome.raw for outcome in outcomes.values()],
            [outcome.fixed for outcome in outcomes.values()],
        )
    )
    weights = torch.tensor(stack.weights(0, 1), dtype=torch.float64)
    settled, _ = settle(raw, fixed, weights, SettleRules(components, num_generations=num_rows), {})
    return settled


def gated(otherwise: float | str) -> Settled:
    """Return the group in which b counts only if a is 1."""
    return settled_of(
        [
            Component("a", lambda row, **_: [A[index] for index in row]),
            Component(
                "b", lambda row, **_: [B[index] for index in row], gates=(ScoreGate("a", low=1.0, otherwise=otherwise),)
            ),
        ],
        GROUP,
    )


def gates() -> Iterator[str]:
    """GRPO: the 0 of a closed gate, and exclusion."""
    yield "| gate | b counts as | totals | advantages |"
    yield "|---|---|---|---|"
    for otherwise, word in ((0.0, "zero"), ("exclude", "exclude")):
        settled = gated(otherwise)
        totals = settled.totals
        row = (settled.effective[:, 1], totals, totals - totals.mean())
        yield f"| {word} | " + " | ".join(numbers(column.tolist()) for column in row) + " |"


def leaving_one_out() -> Iterator[str]:
    """RLOO under exclusion: each reward's part, left out of the other rows where it applies."""
    settled = gated("exclude")
    parts = Rloo().parts(settled.unfilled * settled.weights, GROUP)
    yield "| RLOO, exclude | a | b | advantages |"
    yield "|---|---|---|---|"
    columns = (parts[:, 0], parts[:, 1], parts.sum(dim=1))
    yield "| | " + " | ".join(numbers(column.tolist()) for column in columns) + " |"


def offsets() -> Iterator[str]:
    """A dense row under an offset, and under a clip."""
    yield "| a dense row `[1, −0.99]` with | its tokens | their sum |"
    yield "|---|---|---|"
    for words, offset, clip in (("`offset: 0.5`", 0.5, None), ("`clip: [-2, -1]`", 0.0, (-2.0, -1.0))):
        stack = RewardStack([Component("dense", lambda **_: [[1.0, -0.99]], offset=offset, clip=clip)])
        stack.evaluate(prompts=["p"], completions=["ab"], completion_ids=[[1, 2]])
        tokens = stack.token_values("dense", 0, 1.0) or []
        stack.close()
        yield f"| {words} | {numbers(tokens)} | {number(sum(token or 0.0 for token in tokens))} |"


def spans() -> Iterator[str]:
    """A span over three of four tokens."""
    yield "| the span `(0, 3, 1.5)` of `1+2=`, one token per character | its tokens |"
    yield "|---|---|"
    places = [(place, place + 1) for place in range(4)]
    yield f"| `spread: last` | {numbers(place_spans([(0, 3, 1.5)], places, spread='last'))} |"
    yield f"| `spread: even` | {numbers(place_spans([(0, 3, 1.5)], places, spread='even'))} |"


def cut_answer() -> Iterator[str]:
    """GAE of one cut answer under every policy, as PPO computes it, without whitening and KL."""
    yield "| `truncation=` | reward of the last token | advantages | returns |"
    yield "|---|---|---|---|"
    for words, policy in POLICIES.items():
        settled = settled_of([Component("score", lambda **_: [SCORE])], 1)
        endings = Endings(torch.tensor([True]), torch.tensor([3]), 3)
        if policy.changes_total:
            settled = add_truncation(settled, policy, endings)
        goes_on = policy.goes_on(endings)
        scores = last_token_rewards(settled, torch.ones(1, 3, dtype=torch.bool), slice(0, 1))
        if policy.replaces:
            scores = without_last(scores, endings.lengths, goes_on)
        rollout = Rollout(
            is_action=torch.ones(1, 3, dtype=torch.bool),
            scores=scores.double(),
            values=torch.tensor([VALUES], dtype=torch.float64),
            last_values=torch.tensor([LAST_VALUE], dtype=torch.float64),
            is_bootstrapped=goes_on,
            logps=None,
            ref_logps=None,
        )
        algorithm = Ppo(gamma=1.0, gae_lambda=0.95, whiten_advantages=False, keeps_prompts=True)
        found = algorithm.advantages(rollout, 0.0, alone)
        columns = ([scores.sum().item()], found.used[0].tolist(), found.returns[0].tolist())
        yield f"| {words} | " + " | ".join(numbers(column) for column in columns) + " |"


def alone(sums: Tensor) -> Tensor:
    """Return the sums of the only process."""
    return sums


EXAMPLES: dict[str, tuple[Callable[[], Iterator[str]], ...]] = {
    "docs/how-to/rewards.md": (gates, leaving_one_out, offsets, spans),
    "docs/how-to/ppo.md": (cut_answer,),
}
"""Document -> the examples that it quotes."""


def main() -> None:
    """Print every example under the document that quotes it."""
    for document, examples in EXAMPLES.items():
        print(f"## {document}\n")
        for example in examples:
            print("\n".join(example()), end="\n\n")


if __name__ == "__main__":
    main()
