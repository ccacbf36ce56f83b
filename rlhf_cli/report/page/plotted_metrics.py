"""Choose the metrics that the page plots, with their sections and titles."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rlhf_cli.comparison.logged_run import LoggedRun, reward_names
from rlhf_cli.runs.metrics_file import TOTAL

COMPONENTS, SHARES, HEALTH, EVALUATIONS = "components", "shares", "health", "evaluations"
"""The sections that hold plots."""

_MOST_CORRELATIONS = 10
_MOST_IN_SECTION = 24

_HEALTH = {
    "kl/k1_policy_ref": "KL to the reference (k1)",
    "kl": "KL to the reference (k3)",
    "completions/mean_length": "length, tokens",
    "rewards/truncation/fraction": "truncated, share of rows",
    "completions/clipped_ratio": "without an end, share of rows",
    "loss": "loss",
    "entropy": "entropy",
    "frac_reward_zero_std": "groups without deviation, share",
    "clip_ratio/region_mean": "clipped, share of tokens",
    "ppo/explained_variance": "explained variance of the critic",
    "ppo/value_loss": "value loss",
    "ppo/clip_fraction": "clipped, share of actions",
    "ppo/approx_kl_k3_old_new": "KL since the rollout (k3)",
    "kl/coef": "KL coefficient",
    "grad_norm": "gradient norm",
}
_LEARNT = {
    "loss": "loss",
    "accuracy": "accuracy",
    "margin": "margin",
    "rewards/accuracies": "accuracy of the implicit rewards",
    "rewards/margins": "margin of the implicit rewards",
    "rewards/chosen": "implicit reward of the chosen",
    "rewards/rejected": "implicit reward of the rejected",
    "mean_token_accuracy": "accuracy of tokens",
    "mean_reward": "mean reward",
}
_EVALUATED = re.compile(
    r"^eval_((greedy|sampled)/(total|rewards/[^/]+|truncated|tokens)|(pass|maj)@\d+/[^/]+"
    r"|loss|accuracy|margin|mean_reward|rewards/(accuracies|margins|chosen|rejected)|mean_token_accuracy)$"
)
_FROM_ZERO = re.compile(r"share|fraction|ratio|length|tokens$|open")


@dataclass(frozen=True)
class PlottedMetric:
    """A plotted metric: its logged `name`, its `title` on the page, and its `section`."""

    name: str
    title: str
    section: str

    @property
    def key(self) -> str:
        """Return a unique name for this metric that is valid in HTML."""
        return "plot-" + re.sub(r"[^a-zA-Z0-9]+", "-", self.name).strip("-")

    @property
    def from_zero(self) -> bool:
        """Return whether the value axis must include zero, as for shares and lengths."""
        return bool(_FROM_ZERO.search(self.name))


def plotted_metrics(runs: Sequence[LoggedRun], *, no_total: str | None) -> list[PlottedMetric]:
    """Return the logged metrics to plot, in page order. `no_total` is why totals cannot be compared, or None."""
    logged = {name: None for run in runs for name in run.metrics}
    rewards = [name for name in reward_names(runs) if f"rewards/{name}/mean" in logged]
    if not rewards:
        learnt = [PlottedMetric(name, title, COMPONENTS) for name, title in _LEARNT.items() if name in logged]
        health = [one for one in _health(logged) if one.name not in _LEARNT]
        return [*learnt, *health, *_evaluated(logged, no_total)]
    components = [PlottedMetric(f"rewards/{name}/mean", name, COMPONENTS) for name in rewards]
    if TOTAL in logged and no_total is None:
        components.append(PlottedMetric(TOTAL, "total", COMPONENTS))
    components += [
        PlottedMetric(f"rewards/{name}/open_fraction", f"{name}: gate open, share of rows", COMPONENTS)
        for name in rewards
        if _moves(runs, f"rewards/{name}/open_fraction")
    ]
    shares = [
        PlottedMetric(name, f"{name.split('/')[1]}: share of the advantages", SHARES)
        for name in logged
        if name.startswith("rewards/") and name.endswith("/advantage_share") and name.count("/") == 2
    ]
    correlations = [
        PlottedMetric(name, " with ".join(name.split("/")[2:]) + ": correlation", SHARES)
        for name in logged
        if name.startswith("rewards/correlation/")
    ]
    found = [*components[:_MOST_IN_SECTION], *shares[:_MOST_IN_SECTION], *correlations[:_MOST_CORRELATIONS]]
    return [*found, *_health(logged), *_evaluated(logged, no_total)]


def _health(logged: Iterable[str]) -> list[PlottedMetric]:
    known = set(logged)
    return [PlottedMetric(name, title, HEALTH) for name, title in _HEALTH.items() if name in known]


def _evaluated(logged: Iterable[str], no_total: str | None) -> list[PlottedMetric]:
    found = []
    for name in filter(_EVALUATED.match, logged):
        if not (name.endswith("/total") and no_total is not None):
            title = name.removeprefix("eval_").replace("rewards/", "").replace("/", ": ").replace("_", " ")
            found.append(PlottedMetric(name, title, EVALUATIONS))
    return found[:_MOST_IN_SECTION]


def _moves(runs: Sequence[LoggedRun], name: str) -> bool:
    """Return whether a gate was ever closed."""
    return any(bool((run.metrics.series(name).values < 1).any()) for run in runs)
