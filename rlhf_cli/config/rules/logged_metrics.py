"""Know which metrics an experiment logs, as far as that can be known: a reward may log metrics of its own."""

from __future__ import annotations

import re
from collections.abc import Iterable

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.reward_sections import RESERVED_REWARD_NAMES
from rlhf_cli.tables import metrics
from rlhf_cli.text.suggest import nearest, slips

STEP = "step"
"""What a rule may use beside metrics: the number of the step."""
EVAL = "eval_"
_EVAL_BY_TRACKERS = "eval/"
"""The tracker's spelling of what transformers logs as `eval_...`."""
EVALUATED = (EVAL, _EVAL_BY_TRACKERS)
"""Prefixes of the metrics of an evaluation."""
_TOTAL = "total"
_SHORT = 4
"""Words of up to this many letters resemble too many others."""
_ALWAYS = (*metrics.EVERY_TRAINER, *metrics.OF_REWARDS, *metrics.WITH_BETA)
"""Names that mean a metric even if a reward has the same name."""
_SAMPLED = re.compile(r"^(?:(?P<how>greedy|sampled)|(?P<kind>pass|maj)@(?P<count>\d+))/(?P<rest>.+)$")
"""Metrics of answers that an evaluation samples: `greedy/total`, `greedy/rewards/NAME`, `pass@8/NAME`."""
PARTS = ("total", "total/low", "total/high", "truncated", "tokens")
"""What may follow `greedy/` and `sampled/`, beside `rewards/NAME`."""


Unlogged = tuple[str, str | None]
"""Why an experiment does not log a metric, and the nearest that it logs (None if no name is near)."""


def unlogged(metric: str, experiment: Experiment) -> Unlogged | None:
    """Return why an experiment does not log a metric; None if it may log it.

    The nearest metric of an evaluation has its logged name, `eval_rewards/NAME/mean` for a reward. If the run has no
    evaluations, it is the training metric.
    """
    if metric.startswith(EVALUATED):
        plain = metric.removeprefix(EVAL).removeprefix(_EVAL_BY_TRACKERS)
        found = unlogged(plain, experiment)
        why, close = found or ("there is no such metric", plain)
        if not evaluates(experiment):
            return "nothing is evaluated while it trains", close
        if found is None and metric.startswith(EVAL) and logged_name(plain, experiment.rewards) == plain:
            return None
        logged = None if close is None else close if _SAMPLED.match(close) else logged_name(close, experiment.rewards)
        return why, None if logged is None else EVAL + logged
    names = _known(experiment)
    if metric in names or (metric == _TOTAL and experiment.rewards):
        return None
    close, by_word = _similar(metric, names)
    if _SAMPLED.match(metric):
        wrong = _of_sampled(metric, experiment) if experiment.trainer.row.generates else None
        return None if wrong is None else (wrong[0], wrong[1] or close or by_word)
    first, _, rest = metric.partition("/")
    # Rewards may log names of their own, so only a name very similar to a known one is a typo.
    is_typo = close is not None and "/" not in metric and abs(len(metric) - len(close)) <= 2 and metric[:1] == close[:1]
    has_typo = "/" not in metric and by_word is not None
    if first == "rewards" and experiment.rewards:
        pair = rest.split("/")[1:]
        if rest.startswith("correlation/") and len(pair) == 2 and set(pair) <= set(experiment.rewards):
            return None
        why = f"no reward logs that; the rewards are {', '.join(experiment.rewards)}"
    elif metric in (*metrics.OF_A_CRITIC, *metrics.OF_REWARDS, *metrics.WITH_BETA):
        without = " without trainer.args.beta" if metric in metrics.WITH_BETA and experiment.rewards else ""
        why = f"trainer={experiment.trainer.name}{without} does not log it"
    elif is_typo or has_typo or (first in metrics.FAMILIES and "/" in metric):
        why = "there is no such metric"
    else:
        return None
    return why, close or by_word


def _of_sampled(name: str, experiment: Experiment) -> Unlogged | None:
    """Return what is wrong with a metric of an evaluation's answers, and the nearest; None if it is logged."""
    match = _SAMPLED.match(name)
    assert match is not None
    head, rest = name.split("/", 1)
    if match["how"] and not rest.startswith("rewards/"):
        expected = f"{head}/ is followed by one of {', '.join(PARTS)}, rewards/NAME"
        return None if rest in PARTS else (expected, f"{head}/{nearest(rest, PARTS) or 'total'}")
    reward = rest.removeprefix("rewards/").partition("/")[0] if match["how"] else rest.partition("/")[0]
    if reward not in {*experiment.rewards, *RESERVED_REWARD_NAMES, "correlation"}:
        close = nearest(reward, experiment.rewards)
        corrected = f"{head}/{rest.replace(reward, close, 1)}" if close else None
        return f"the rewards are {', '.join(experiment.rewards)}", corrected
    trainer = experiment.trainer
    from rlhf_cli.numerics.intervals import attempt_counts

    counts = attempt_counts(trainer.whole("num_generations_eval") or trainer.whole("num_generations") or 1)
    valid = [*(f"pass@{count}" for count in counts), f"maj@{counts[-1]}"]
    if match["how"] or head in valid:
        return None
    why = f"an evaluation samples num_generations_eval={counts[-1]} answers, which gives {', '.join(valid)}"
    return why, f"{match['kind']}@{counts[-1]}/{rest}"


def _similar(typed: str, names: list[str]) -> tuple[str | None, str | None]:
    """Return the nearest name, and the first with a word similar to the typed one.

    Such a word is `lenght` for `completions/mean_length`. Each is None if no name is near.
    """
    words = {word: name for name in reversed(names) for word in re.split(r"[/_]", name) if len(word) > _SHORT}
    word = nearest(typed, words) if typed not in words else None
    return nearest(typed, names), words[word] if word is not None and slips(typed, word) <= 2 else None


def _known(experiment: Experiment) -> list[str]:
    """Return the rewards' names and the metrics that the experiment is known to log."""
    known = [*experiment.rewards, *metrics.EVERY_TRAINER]
    if not experiment.trainer.row.generates:
        return known
    known += metrics.OF_REWARDS
    has_critic = experiment.trainer.baseline == "critic"
    known += metrics.OF_A_CRITIC if has_critic else ()
    known += metrics.WITH_BETA if has_critic or experiment.trainer.args.get("beta") else ()
    parts: dict[str, tuple[str, ...]] = dict.fromkeys(experiment.rewards, metrics.OF_A_REWARD)
    parts["truncation"] = (*metrics.OF_TRUNCATION, *metrics.OF_TRUNCATION_TOO)
    parts |= {"kl": metrics.OF_KL, "value": metrics.OF_VALUE} if has_critic else {}
    return [*known, *(f"rewards/{name}/{what}" for name, whats in parts.items() for what in whats)]


def examples_of_metrics(experiment: Experiment) -> str:
    """Return some metrics that an experiment logs, for a message."""
    names = _known(experiment)
    usual: list[str] = [name for name in ("reward", "entropy", "kl/k1_policy_ref", "kl", "loss") if name in names]
    examples = ", ".join([*experiment.rewards][:3] + usual[:3])
    return f"a metric that is logged (docs/reference/metrics.md), such as {examples}"


def logged_name(name: str, rewards: Iterable[str]) -> str:
    """Return the name in metrics.jsonl for a short name: a reward's raw mean, or TRL's `reward` for `total`."""
    if name in rewards and name not in _ALWAYS:
        return f"rewards/{name}/mean"
    return "reward" if name == _TOTAL else name


def evaluates(experiment: Experiment) -> bool:
    """Return whether the experiment evaluates during training."""
    args = experiment.trainer.args
    return args.get("eval_strategy", "no") not in ("no", False) or bool(args.get("eval_on_start"))
