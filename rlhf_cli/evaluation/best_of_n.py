"""Run one `rlhf generate` from rows to files, and estimate what the best of k sampled answers is worth.

Best of k draws k answers and keeps the one with the highest score. With n sorted scores s_(1) <= ... <= s_(n), the mean
over all subsets of size k is

    Σ_i w_i(k) s_(i),    w_i(k) = C(i - 1, k - 1) / C(n, k) ,

because answer i is the best of those subsets whose other k - 1 members come before it. This is a U-statistic: it is
unbiased for k fresh answers, with the least variance among unbiased estimators (Hoeffding 1948). The maximum of the
first k answers is also unbiased, but far noisier. The other rewards at that pick use the same weights. Answers with
equal scores share their weight, like a pick that breaks ties at random.

The policy that best of k represents differs from the sampled one by at most

    KL(best of k || policy) <= log k - (k - 1) / k    nats .

Stiennon et al. (arXiv 2009.01325, appendix G.3) state this as its value; Beirami et al. (arXiv 2401.01879) prove that
it is an upper bound. It is the exact value if no two answers score alike, and too high if answers repeat.

A pair is the best answer to a prompt against the worst, both from the policy itself, as in iterated DPO (Xu et al.,
arXiv 2312.16682, also take the best and worst by a reward). The best answers alone are what RAFT trains on (Dong et
al., arXiv 2304.06767). A truncated answer is never a training target, because a trainer would teach the policy to end
there. An answer without text is not used at all, because no trainer accepts it.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rlhf_cli.config.expand import primary_of
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.trainer_sections import ENVIRONMENT_COLUMN
from rlhf_cli.data.source import Row
from rlhf_cli.errors import ConfigError, RunError, writing
from rlhf_cli.evaluation.evaluation_results import (
    AnsweredPrompt,
    BestOfK,
    BestOfN,
    MadeRows,
    PartAnswers,
    Sample,
    completions_of,
)
from rlhf_cli.evaluation.held_out_rows import end_of_run
from rlhf_cli.evaluation.score_completions import Interact
from rlhf_cli.evaluation.targets import Target
from rlhf_cli.models.tokenizer_files import variables_of
from rlhf_cli.numerics.intervals import Estimate, mean_with_interval
from rlhf_cli.plan.stack_building import told_tools
from rlhf_cli.rewards.completion_text import text_of
from rlhf_cli.rewards.stack.aggregating import why_no_total
from rlhf_cli.rewards.stack.scored_rows import ScoredRow
from rlhf_cli.runs.run_folder import SAMPLED, as_typed, make_folder, write_json, write_rows
from rlhf_cli.tables.trl_trainers import IMAGES, TEMPLATE
from rlhf_cli.text.json_values import without_images

if TYPE_CHECKING:
    from rlhf_cli.models.policy_model import PolicyModel

Floats = NDArray[np.float64]
TOTAL = "total"
"""The score used to pick answers if no reward is named."""


def score_of(scored: ScoredRow, by: str) -> float | None:
    """Return the total of an answer, or its raw score of the reward `by`."""
    return scored.total if by == TOTAL else scored.rewards[by].raw


def best_of_n(sampled: PartAnswers, *, by: str = TOTAL) -> BestOfN:
    """Return the curve for k = 1 .. n of the n answers to each prompt. It is empty if no prompt is usable."""
    prompts = sampled.prompts()
    scored = [(samples, [score_of(row, by) for _, row in samples]) for samples in prompts]
    n = sampled.each
    by_place = np.array([[math.comb(place, k - 1) / math.comb(n, k) for place in range(n)] for k in range(1, n + 1)])
    usable = [(samples, _pick_weights(np.array(scores), by_place)) for samples, scores in scored if None not in scores]
    if not usable:
        return BestOfN(by, [], len(prompts))

    def curve_of(value: Callable[[AnsweredPrompt, ScoredRow], float | None]) -> list[Estimate]:
        values = [[value(*sample) for sample in samples] for samples, _ in usable]
        picked = np.array([_picked(weights, row) for (_, weights), row in zip(usable, values, strict=True)])
        columns = ([mean for mean in column if not math.isnan(mean)] for column in picked.T.tolist())
        return [mean_with_interval(means, chain(*values)) for means in columns]

    def scored_by(name: str) -> list[Estimate]:
        return curve_of(lambda _, row: score_of(row, name))

    picked_by = scored_by(by)
    others = {name: scored_by(name) for name in (TOTAL, *usable[0][0][0][1].rewards) if name != by}
    cut_off = curve_of(lambda answer, _: float(answer.is_truncated))
    curve = [
        BestOfK(k + 1, picked_by[k], {name: means[k] for name, means in others.items()}, cut_off[k], kl_bound(k + 1))
        for k in range(n)
    ]
    return BestOfN(by, curve, len(prompts) - len(usable))


def _pick_weights(scores: Floats, by_place: Floats) -> Floats:
    """Return (n, n): entry [k - 1, i] is the probability that answer i is the best of k, by their (n,) scores.

    `by_place` (n, n) holds these probabilities for ascending scores without ties.
    """
    weights = np.empty_like(by_place)
    weights[:, np.argsort(scores)] = by_place
    for value in np.unique(scores):
        alike = scores == value
        weights[:, alike] = weights[:, alike].mean(axis=1, keepdims=True)
    return weights


def kl_bound(k: int) -> float:
    """Return log k - (k - 1) / k in nats: the maximum KL of best of k from the policy it samples."""
    return math.log(k) - (k - 1) / k


def _picked(weights: Floats, values: Sequence[float | None]) -> list[float]:
    """Return the mean of a value at the pick for k = 1 .. n, over the picks that have it; NaN if no pick does."""
    known = np.array([value is not None for value in values])
    present = np.array([value for value in values if value is not None])
    mass = weights[:, known].sum(axis=1)
    summed = weights[:, known] @ present
    means: list[float] = np.divide(summed, mass, out=np.full_like(mass, np.nan), where=mass > 0).tolist()
    return means


def preference_pairs(rows: Sequence[Row], sampled: PartAnswers, *, by: str, least_margin: float) -> MadeRows:
    """Return at most one preference row per prompt, with a margin above 0 and at least `least_margin`.

    `rows` has one row per prompt. Among equal scores, the first sampled answer is used. A pair that repeats is written
    once.
    """
    made, seen = MadeRows(), set[str]()
    for row, samples in zip(rows, sampled.prompts(), strict=True):
        ranked = _ranked(samples, by)
        ended = [pair for pair in ranked if not pair[1].is_truncated]
        if len(ranked) < 2 or not ended:
            few = "fewer than two answers have a score and a text"
            made.left_out[few if len(ranked) < 2 else "no answer is finished"] += 1
            continue
        (high, chosen), low = ended[0], ranked[-1][0]
        rejected = next(answer for score, answer in ranked if score == low)
        pair = {**_asked(row, chosen), "chosen": chosen.completion, "rejected": rejected.completion}
        if chosen.row["prompt"] != rejected.row["prompt"]:
            made.left_out["the environment began differently for the two answers"] += 1
        elif high <= low:
            made.left_out["the best finished answer scores no higher than the worst"] += 1
        elif high - low < least_margin:
            made.left_out[f"the margin is below {least_margin:g}"] += 1
        elif (key := _key(pair)) in seen:
            made.left_out["a repeated pair"] += 1
        else:
            seen.add(key)
            made.rows.append({**pair, "margin": high - low, "score_chosen": high, "score_rejected": low})
    return made


def best_answers(rows: Sequence[Row], sampled: PartAnswers, *, by: str, keep: int, at_least: float | None) -> MadeRows:
    """Return rows with prompt, completion and score: the `keep` best different answers per prompt, best first.

    `rows` has one row per prompt. Leave out answers that score below `at_least`, if given.
    """
    made, seen = MadeRows(), set[str]()
    for row, samples in zip(rows, sampled.prompts(), strict=True):
        ranked = _ranked(samples, by)
        ended = [pair for pair in ranked if not pair[1].is_truncated]
        good = [pair for pair in ended if at_least is None or pair[0] >= at_least]
        new: dict[str, Row] = {}
        for score, answer in good:
            best = {**_asked(row, answer), "completion": answer.completion}
            if (key := _key(best)) not in seen and len(new) < keep:
                new.setdefault(key, {**best, "score": score})
        seen.update(new)
        made.rows.extend(new.values())
        if not ranked:
            made.left_out["no answer has a score and a text"] += 1
        elif not ended:
            made.left_out["no answer is finished"] += 1
        elif not good:
            made.left_out[f"no finished answer scores {at_least:g} or more"] += 1
        elif not new:
            made.left_out["repeated answers"] += 1
    return made


def with_pass_rates(rows: Sequence[Row], sampled: PartAnswers, *, by: str, at_least: float | None = None) -> list[Row]:
    """Return rows with `pass_rate`: the share of their answers that score `at_least` (None: 1), None for no scores."""
    passes = 1.0 if at_least is None else at_least
    rated = []
    for row, samples in zip(rows, sampled.prompts(), strict=True):
        passed = [score >= passes for _, scored in samples if (score := score_of(scored, by)) is not None]
        rated.append({**without_images(row), "pass_rate": sum(passed) / len(passed) if passed else None})
    return rated


def _ranked(samples: Sequence[Sample], by: str) -> list[tuple[float, AnsweredPrompt]]:
    """Return the answers that have a score and a text, best first; equal scores keep the sampling order."""
    with_text = [sample for sample in samples if text_of(sample[0].completion).strip()]
    scored = [(score, answer) for answer, row in with_text if (score := score_of(row, by)) is not None]
    return sorted(scored, key=lambda pair: -pair[0])


def _asked(row: Row, answer: AnsweredPrompt) -> Row:
    """Return the prompt that was answered, to which an environment may have added, what the chat template read beside
    it, and the names of images.
    """
    beside = {name: row[name] for name in TEMPLATE if row.get(name)}
    images = without_images({name: row[name] for name in IMAGES if name in row})
    return {"prompt": answer.row["prompt"], **beside, **images}


def _with_template(rows: Sequence[Row], experiment: Experiment, policy: PolicyModel | None) -> list[Row]:
    """Return the rows with what the chat template reads beside their prompts, in the columns that trainers read."""
    if policy is None or isinstance(rows[0]["prompt"], str):
        return [{**row, **dict.fromkeys(TEMPLATE)} for row in rows]
    settings = experiment.trainer.setting("chat_template_kwargs")
    known = variables_of(policy.tokenizer.get_chat_template(tools=[{}]))
    told = told_tools(experiment) if "tools" in known else lambda _: []
    beside = (dict(zip(TEMPLATE, (told(row.get(ENVIRONMENT_COLUMN)), settings), strict=True)) for row in rows)
    return [{**row, **own} for row, own in zip(rows, beside, strict=True)]


def _key(row: Row) -> str:
    return json.dumps(row, sort_keys=True, default=str)


COMPLETIONS, PAIRS, BEST = "completions.jsonl", "pairs.jsonl", "best.jsonl"
CURVE = "best_of_n.json"
BATCH = 32
"""Default number of completions sampled at once. Another number changes the random numbers."""


def make_room(folder: Path, *, overwrite: bool) -> None:
    """Create the output folder. Raise RunError if that fails, or if it holds such files and `overwrite` is false."""
    there = [name for name in (COMPLETIONS, PAIRS, BEST, CURVE) if (folder / name).exists()]
    if there and not overwrite:
        what, expected = "this folder already has completions", "a folder without them"
        got, hint = ", ".join(there), "--out FOLDER, or --overwrite"
        raise RunError(what, where=as_typed(folder), got=got, expected=expected, hint=hint)
    make_folder("the folder of completions", folder, "--out FOLDER")


def pass_rate_file(
    experiment: Experiment, file: Path | None, by: str | None, *, overwrite: bool
) -> tuple[Path, str] | None:
    """Return the file for `--pass-rate`, and the reward that answers have to pass: `by`, else the primary one."""
    if file is None:
        return None
    rewards = experiment.rewards
    name = by or primary_of(rewards) or TOTAL
    if name == TOTAL:
        what = "--pass-rate needs a reward that says which answers pass"
        expected, hint = "--by REWARD, one of " + ", ".join(rewards), f"--by {next(iter(rewards))}"
        raise ConfigError(what, where="rlhf generate", expected=expected, hint=hint)
    if file.suffix != ".jsonl" or not file.parent.is_dir() or (file.exists() and not overwrite):
        got = f"{file}, which exists" if file.exists() else str(file)
        expected, hint = "a new file NAME.jsonl in a folder that exists", "--pass-rate NAME.jsonl, or --overwrite"
        raise RunError("the pass rates cannot be written", where="--pass-rate", got=got, expected=expected, hint=hint)
    return file, name


@dataclass(frozen=True)
class GenerationRequest:
    """What to sample and make. `least_margin` is for pairs, `keep` (per prompt) and `at_least` for the best answers.

    `pass_rate` is the file of the prompts' rows with their pass rate, and the reward that says which answers pass.
    """

    num_samples: int
    by: str
    least_margin: float
    keep: int
    at_least: float | None
    batch_size: int | None
    pass_rate: tuple[Path, str] | None = None


@dataclass(frozen=True)
class GeneratedFiles:
    """The curve, the rows by file name, the `content` of best_of_n.json, and the written files."""

    best: BestOfN
    made: dict[str, MadeRows]
    content: dict[str, object]
    files: list[Path]


def generate(
    target: Target,
    experiment: Experiment,
    rows: list[Row],
    which: str,
    request: GenerationRequest,
    *,
    on_batch: Callable[[int], None],
    policy: PolicyModel | None = None,
    interact: Interact | None = None,
) -> GeneratedFiles:
    """Sample and score completions, and write everything into the target's folder, which must exist.

    Either the `policy` answers in one piece, or `interact` as in the training. Raise ConfigError if answers have no
    total of their own and `by` is the total.
    """
    from rlhf_cli.evaluation.evaluation_run import policy_answers, sampling_of  # torch

    end = end_of_run(target)
    reason = why_no_total(experiment.rewards, experiment.aggregate, end.running) if request.by == TOTAL else None
    if reason is not None:
        what, expected = "a completion has no total here", "--by REWARD, one of " + ", ".join(experiment.rewards)
        hint = f"--by {next(iter(experiment.rewards))}"
        raise ConfigError(what, where="aggregate, rewards", got=reason, expected=expected, hint=hint)
    each = request.num_samples
    sampling = sampling_of(experiment, each, request.batch_size or BATCH, on_batch)
    if interact is not None:
        parts, _ = interact(target.model, experiment, rows, each, sampling.batch_size, end)
    else:
        assert policy is not None
        parts, _ = policy_answers(policy, experiment, rows, {SAMPLED: sampling}, end)
    part = parts[SAMPLED]
    best, asked = best_of_n(part, by=request.by), _with_template(rows, experiment, policy)
    made = {
        PAIRS: preference_pairs(asked, part, by=request.by, least_margin=request.least_margin),
        BEST: best_answers(asked, part, by=request.by, keep=request.keep, at_least=request.at_least),
    }
    content: dict[str, object] = {
        "model": target.label,
        "path": str(target.model),
        "data": which,
        "time": time.time(),
        "samples": each,
        "settings": {**sampling.settings, "seed": sampling.seed, "batch_size": sampling.batch_size},
        "prompts": len(rows),
        "by": best.by,
        "curve": [asdict(point) for point in best.curve],
        "prompts_without_score": best.left_out,
        "made": {name: {"rows": len(result.rows), "left_out": result.left_out} for name, result in made.items()},
    }
    tables = {COMPLETIONS: completions_of({SAMPLED: part}), **{name: result.rows for name, result in made.items()}}
    files = _write(target.folder, tables, content)
    if request.pass_rate is not None:
        file, name = request.pass_rate
        with writing("the pass rates", file, "--pass-rate NAME.jsonl"):
            write_rows(file, with_pass_rates(rows, part, by=name, at_least=request.at_least))
        files.append(file)
    return GeneratedFiles(best, made, content, [*files, target.folder / CURVE])


def _write(folder: Path, tables: Mapping[str, list[Row]], content: dict[str, object]) -> list[Path]:
    """Write the tables that have rows, remove older ones, and return their files."""
    files = []
    with writing("the completions", folder, "--out FOLDER"):  # the disk may be full
        for name, some in tables.items():
            (folder / name).unlink(missing_ok=True)  # the files of a folder belong together
            if some:
                files.append(folder / name)
                write_rows(files[-1], some)
        write_json(folder / CURVE, content)
    return files
