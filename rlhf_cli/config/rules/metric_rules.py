"""Check the metrics that stop rules, expectations, searches and best checkpoints name; a reward may log its own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import permutations

from rlhf_cli.config import trl_args
from rlhf_cli.config.origins import Origins
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.section import entries_of
from rlhf_cli.errors import ConfigError, UserError
from rlhf_cli.rewards.stack.aggregating import why_no_total
from rlhf_cli.tables import metrics
from rlhf_cli.tables.trl_values import FOLLOW_EVALUATIONS
from rlhf_cli.text.suggest import nearest, slips
from rlhf_cli.truncation import ENDINGS

EVAL = "eval_"
_EVAL_BY_TRACKERS = "eval/"
"""The tracker's spelling of what transformers logs as `eval_...`."""
EVALUATED = (EVAL, _EVAL_BY_TRACKERS)
"""Prefixes of the metrics of an evaluation."""
_SHORT = 4
"""Words of up to this many letters resemble too many others."""
_IS_OF_ANSWERS = re.compile(r"(greedy|sampled|(pass|maj)@\d+)/.")
"""Finds metrics of answers that an evaluation samples: `greedy/total`, `greedy/rewards/NAME`, `pass@8/NAME`."""
PARTS = ("total", "total/low", "total/high", "total/seen", "total/unseen", "truncated", "tokens")
"""What may follow `greedy/` and `sampled/`, beside `rewards/NAME`."""

Unlogged = tuple[str, str | None]
"""Why an experiment does not log a metric, and the nearest that it logs (None if no name is near)."""


def unlogged(metric: str, experiment: Experiment) -> Unlogged | None:
    """Return why an experiment does not log a metric, and the nearest that it logs; None if it may log the metric."""
    rewards, trainer, sets = experiment.rewards, experiment.trainer, experiment.data.eval_names
    is_evaluated, (prefix, plain) = metric.startswith(EVALUATED), _parts(metric, experiment)
    reward, first = plain.removeprefix("rewards/").partition("/")[0], plain.partition("/")[0]
    if not is_evaluated and reward in rewards and rewards[reward].when == "eval":
        return f"rewards.{reward}.when=eval: it is not computed in training", f"{prefix}rewards/{reward}/mean"
    is_of_answers, answers, why = _IS_OF_ANSWERS.match(plain) is not None, _of_answers(experiment), None
    known = [*_known(experiment), *(answers if is_evaluated or is_of_answers else ())]
    close, by_word = _similar(plain, known)
    # Rewards may log names of their own, so only a name very similar to a known one is a typo.
    is_typo = close is not None and abs(len(plain) - len(close)) <= 2 and plain[:1] == close[:1]
    if plain in known or (plain == metrics.TOTAL and rewards) or metrics.is_of_the_clock(plain):
        close = plain
    elif is_of_answers and answers:
        alike = [name for name in answers if name.startswith(f"{first}/")] or [name for name in answers if "@" in name]
        why = f"an evaluation logs {', '.join(alike)}"
        close = close or next((name for name in alike if "@" not in name), None)
    elif first == "rewards" and rewards:
        why = f"no reward logs it; the rewards are {', '.join(rewards)}"
    elif plain in (*metrics.OF_A_CRITIC, *metrics.OF_REWARDS, *metrics.WITH_BETA):
        without = " without trainer.args.beta" if plain in metrics.WITH_BETA and rewards else ""
        why = f"trainer={trainer.name}{without} does not log it"
    elif (first in metrics.FAMILIES) if "/" in plain else is_typo or by_word:
        why = "there is no such metric"
    else:
        close = plain
    close = close or by_word
    if not is_evaluated:
        return (why, close) if why else None
    if not trainer.evaluates:
        return "the run has no evaluations", close
    logged = close and prefix + (close if close in answers else metrics.logged_name(close, rewards))
    if sets and not metric.startswith(tuple(f"{start}{name}_" for start in EVALUATED for name in sets)):
        why = f"the metrics of a set begin with {' or '.join(f'{EVAL}{name}_' for name in sets)}"
        of_set = nearest(plain, [f"{name}_{known}" for name in sets for known in _known(experiment)])
        logged = EVAL + of_set if of_set else logged
    return None if logged == metric else (why or "there is no such metric", logged)


def unlisted(metric: str, experiment: Experiment) -> Unlogged | None:
    """Return why only code of the user's could log a metric, and the nearest; None if a table or TRL names it."""
    trainer, (_, plain) = experiment.trainer, _parts(metric, experiment)
    names = [*metrics.AT_THE_END, metrics.STEP, metrics.TOTAL, *_known(experiment)]
    names += trl_args.named_in(trainer.row.config_class)
    families = {name.partition("/")[0] for name in names if "/" in name and trainer.row.generates}
    is_named = plain in names or plain.partition("/")[0] in families
    if is_named or metrics.is_of_the_clock(metric) or _IS_OF_ANSWERS.match(plain):
        return None
    likely = (*(name for name in names if plain in name), *_similar(plain, names))
    return f"trainer={trainer.name} does not log it, as far as rlhf knows", next(filter(None, likely), None)


def _parts(metric: str, experiment: Experiment) -> tuple[str, str]:
    """Return what begins the metrics of the set that a metric is of, by default of the first; and the rest of it."""
    plain = metric.removeprefix(EVAL).removeprefix(_EVAL_BY_TRACKERS)
    names = experiment.data.eval_names
    name = max((name for name in names if plain.startswith(f"{name}_")), key=len, default=next(iter(names), None))
    return (EVAL, plain) if name is None else (f"{EVAL}{name}_", plain.removeprefix(f"{name}_"))


def _of_answers(experiment: Experiment) -> list[str]:
    """Return the metrics of the answers that an evaluation samples; the largest k first."""
    from rlhf_cli.numerics.intervals import attempt_counts

    trainer, rewards = experiment.trainer, experiment.rewards
    counts = attempt_counts(trainer.whole("num_generations_eval") or trainer.whole("num_generations") or 1)
    parts = [*PARTS, *(f"rewards/{name}" for name in rewards)]
    found = [f"{how}/{part}" for how in ("greedy", "sampled") for part in parts]
    heads = [*(f"pass@{count}" for count in counts[::-1]), f"maj@{counts[-1]}"]
    return [*found, *(f"{head}/{name}" for head in heads for name in rewards)] if trainer.row.generates else []


def _similar(typed: str, names: list[str]) -> tuple[str | None, str | None]:
    """Return the nearest name, and the first with a word similar to the typed one, as `lenght` in `mean_length`."""
    words = {word: name for name in reversed(names) for word in re.split(r"[/_]", name) if len(word) > _SHORT}
    word = nearest(typed, words) if typed not in words else None
    return nearest(typed, names), words[word] if word is not None and slips(typed, word) <= 2 else None


def _known(experiment: Experiment) -> list[str]:
    """Return the rewards' names and the metrics that the experiment is known to log."""
    known = [*experiment.rewards, *metrics.EVERY_TRAINER]
    if not experiment.trainer.row.generates:
        return [*known, *sorted(trl_args.named_in(experiment.trainer.row.config_class))]
    known += metrics.OF_REWARDS
    has_critic = experiment.trainer.has_critic
    known += metrics.OF_A_CRITIC if has_critic else ()
    known += metrics.WITH_BETA if has_critic or experiment.trainer.args.get("beta") else ()
    known += [f"completions/endings/{ending}" for ending in ENDINGS] if experiment.interacts else ()
    known += metrics.OF_SAMPLING if experiment.sampling.keep_groups is not None else ()
    parts: dict[str, tuple[str, ...]] = dict.fromkeys(experiment.rewards, metrics.OF_A_REWARD)
    parts["truncation"] = (*metrics.OF_TRUNCATION, *metrics.OF_TRUNCATION_TOO)
    parts |= {"kl": metrics.OF_KL, "value": metrics.OF_VALUE} if has_critic else {}
    known += [f"rewards/correlation/{first}/{second}" for first, second in permutations(experiment.rewards, 2)]
    return [*known, *(f"rewards/{name}/{what}" for name, whats in parts.items() for what in whats)]


def examples_of_metrics(experiment: Experiment) -> str:
    """Return some metrics that an experiment logs, for a message."""
    names = _known(experiment)
    usual: list[str] = [name for name in ("reward", "entropy", "kl/k1_policy_ref", "kl", "loss") if name in names]
    examples = ", ".join([*experiment.rewards][:3] + usual[:3])
    return f"a metric that is logged (docs/reference/metrics.md), such as {examples}"


_BEST = "trainer.args.metric_for_best_model"


def stop_problems(experiment: Experiment, origins: Origins) -> Iterator[UserError]:
    """Yield every stop rule whose metric this experiment does not log."""
    is_list = isinstance(experiment.stop, list)
    for name, rule in entries_of(experiment.stop).items():
        problem = None if rule.metric == metrics.STEP else unlogged(rule.metric, experiment)
        if problem is None:
            continue
        why, close = problem
        key = ".".join(part for part in ("stop", name, "when") if part)
        instead = rule.when.replace(rule.metric, close, 1) if close else None
        # A part of a list entry cannot be typed alone.
        hint = None if instead is None else f"when: {instead}" if is_list else f"'{key}={instead}'"
        what, expected = f"a stop rule reads {rule.metric!r}: {why}", examples_of_metrics(experiment)
        yield origins.error("stop" if is_list else key, what, rule.when, hint, expected=expected)


_EVALUATE = ", or data.eval.fraction=0.1 trainer.args.eval_strategy=steps"
_NOTHING = "expect=null"


def expect_problems(experiment: Experiment, origins: Origins) -> Iterator[UserError]:
    """Yield every expectation that this experiment cannot meet."""
    last_step = experiment.trainer.args.get("max_steps")
    for name, target in entries_of(experiment.expect).items():
        key = ".".join(part for part in ("expect", name) if part)
        where, prefix, equals = origins.where(key), f"{key}.", "="
        if isinstance(experiment.expect, list):  # a part of a list entry cannot be typed alone
            where, prefix, equals = f"{origins.where('expect')}, entry {int(name) + 1}", "", ": "
        if (problem := unlogged(target.metric, experiment)) is not None:
            why, close = problem
            not_yet = target.metric.startswith(EVALUATED) and not experiment.trainer.evaluates
            what, got = f"an expectation reads {target.metric!r}: {why}", f"metric: {target.metric}"
            hint = f"{prefix}metric{equals}{close}{_EVALUATE if not_yet else ''}" if close else _NOTHING
            yield ConfigError(what, where=where, got=got, expected=examples_of_metrics(experiment), hint=hint)
        if isinstance(target.at, int) and isinstance(last_step, int) and 0 < last_step < target.at:
            what = f"an expectation reads step {target.at}, but the run ends at step {last_step}"
            hint = f"{prefix}at=end" if prefix else f"at: end, or {_NOTHING}"
            yield ConfigError(what, where=where, got=f"at: {target.at}", hint=hint)


def evaluation_problems(experiment: Experiment, origins: Origins) -> Iterator[UserError]:
    """Yield an error for an evaluation without rows, and for a best checkpoint by a metric that cannot choose it."""
    args, data, rewards = experiment.trainer.args, experiment.data, experiment.rewards
    if experiment.trainer.evaluates and data.eval is None:
        key = "eval_on_start" if args.get("eval_on_start") is True else "eval_strategy"
        what, hint = "there are no rows to evaluate on", "data.eval.fraction=0.1, or data.eval.path=FILE"
        yield origins.error(f"trainer.args.{key}", what, f"{key}={args[key]} without data.eval".lower(), hint)
    metric = args.get("metric_for_best_model")
    chooses = bool(args.get("load_best_model_at_end")) or args.get("save_strategy") == "best"
    chooses = chooses or args.get("lr_scheduler_type") in FOLLOW_EVALUATIONS
    if metric is None and data.eval_names and chooses:
        metric = "loss"  # transformers' default
    if not isinstance(metric, str):
        return
    name = metric.removeprefix(EVAL)
    of_set = _parts(name, experiment)[0].removeprefix(EVAL)
    if not name.startswith(of_set):
        what, hint = "the best checkpoint is chosen by the metric of one set", f"{_BEST}={EVAL}{of_set}{name}"
        expected = f"a name that begins with {' or '.join(f'{EVAL}{one}_' for one in data.eval_names)}"
        yield origins.error(_BEST, what, metric, hint, expected=expected)
        return
    name, prefix = name.removeprefix(of_set), (EVAL if metric.startswith(EVAL) else "") + of_set
    is_total = re.match(r"(greedy|sampled)/(?!rewards/).*total", name) is not None
    relative = None
    # A running deviation exists in an evaluation, but it changes during training, and so does the unit of the total.
    # TRL's total has no z-scores: it is the mean of the raw scores.
    if rewards and (name in ("reward", "reward_std") or is_total):
        relative = why_no_total(rewards, experiment.aggregate if is_total else "sum")
    if relative is not None:
        foremost = experiment.primary.by if experiment.primary is not None else next(iter(rewards), "NAME")
        what, hint = f"{metric} cannot tell better checkpoints from worse", f"{_BEST}={prefix}greedy/rewards/{foremost}"
        expected = f"greedy/rewards/NAME, the mean raw score of {' or '.join(rewards)}"
        yield origins.error(_BEST, what, f"{metric}, but {relative}", hint, expected=expected)
    elif (problem := unlogged(name, experiment)) is not None:
        meant = f"{_BEST}={prefix}{problem[1]}" if problem[1] else None
        yield origins.error(_BEST, f"no evaluation logs {metric}", metric, meant, expected=problem[0])


_IS_TOTAL = re.compile(r"reward|eval_(\w+_)?(reward|(greedy|sampled)/total)")
_SCORES = re.compile(r"^rewards\.([^.]+)\.(fn|model|environment|args|per|with_eos|max_length)\b")
MOVES_THE_TOTAL = re.compile(
    rf"{_SCORES.pattern}|^(rewards\.[^.]+\.(weight|gate|offset|clip|normalize|on_error)|primary|aggregate|truncation)\b"
)
"""The keys that affect how rewards become a total."""


def sweep_problems(experiment: Experiment, origins: Origins) -> Iterator[UserError]:
    """Yield an error for an objective that is not logged or that the search changes, and for pruning by several."""
    sweep, key = experiment.sweep, "sweep.objective"
    if sweep is None:
        return
    for objective in sweep.objective:
        typed = objective.removeprefix("-").strip()
        if (problem := unlogged(typed, experiment)) is not None:
            hint = f"{key}={objective.replace(typed, problem[1], 1)}" if problem[1] else None
            what, expected = f"no run of this experiment logs {typed}: {problem[0]}", examples_of_metrics(experiment)
            yield origins.error(key, what, objective, hint, expected=expected)
        is_total = _IS_TOTAL.fullmatch(metrics.logged_name(typed, experiment.rewards))
        if is_total and (moving := [moved for moved in sweep.space if MOVES_THE_TOTAL.match(moved)]):
            yield moving_total(objective, moving, list(experiment.rewards), where=origins.where(key))
    if len(sweep.objective) > 1 and sweep.prune != "off":
        what, got = "sweep.prune needs a single objective", f"{sweep.prune}, and {len(sweep.objective)} objectives"
        yield origins.error("sweep.prune", what, got, "sweep.prune=off")


def moving_total(objective: str, keys: list[str], rewards: list[str], *, where: str) -> ConfigError:
    """Return an error for a total as the objective of a search over what the total is computed from."""
    moved = {match[1] for key in keys if (match := _SCORES.match(key))}
    raw = ",".join(f"rewards/{name}/mean" for name in rewards if name not in moved) or "rewards/NAME/mean"
    expected, got = "raw scores, which the search does not change", f"a search over {', '.join(keys)}"
    what = f"the search itself changes {objective}: the largest weight, or the most lenient scorer, would win"
    return ConfigError(what, where=where, got=got, expected=expected, hint=f"sweep.objective='[{raw}]'")
