"""Run one `rlhf generate` from rows to files."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rlhf_cli.config.expand import primary_of
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.data.source import Row
from rlhf_cli.errors import ConfigError, RunError, writing
from rlhf_cli.evaluation.best_of_n import (
    TOTAL,
    BestOfN,
    MadeRows,
    best_answers,
    best_of_n,
    preference_pairs,
    with_pass_rates,
)
from rlhf_cli.evaluation.evaluation_results import PartAnswers, completions_of
from rlhf_cli.evaluation.held_out_rows import end_of_run
from rlhf_cli.evaluation.score_completions import Interact
from rlhf_cli.evaluation.targets import Target
from rlhf_cli.rewards.stack.aggregating import why_no_total
from rlhf_cli.runs.run_folder import SAMPLED, as_typed, make_folder, write_json, write_rows

if TYPE_CHECKING:
    from rlhf_cli.models.policy_model import PolicyModel

COMPLETIONS, PAIRS, BEST = "completions.jsonl", "pairs.jsonl", "best.jsonl"
CURVE = "best_of_n.json"
BATCH = 32
"""Default number of completions sampled at once. Another number changes the random numbers."""


def make_room(folder: Path, *, overwrite: bool) -> None:
    """Create the output folder. Raise RunError if that fails, or if it holds such files and `overwrite` is false."""
    there = [name for name in (COMPLETIONS, PAIRS, BEST, CURVE) if (folder / name).exists()]
    if there and not overwrite:
        what, expected = "this folder already has completions", "a folder without them"
        raise RunError(
            what, where=as_typed(folder), got=", ".join(there), expected=expected, hint="--out FOLDER, or --overwrite"
        )
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
    from rlhf_cli.evaluation.evaluation_run import answer_prompts, sampling_of, score_answers  # torch

    end = end_of_run(target)
    reason = why_no_total(experiment.rewards, experiment.aggregate, end.running) if request.by == TOTAL else None
    if reason is not None:
        what, expected = "a completion has no total here", "--by REWARD, one of " + ", ".join(experiment.rewards)
        hint = f"--by {next(iter(experiment.rewards))}"
        raise ConfigError(what, where="aggregate, rewards", got=reason, expected=expected, hint=hint)
    each = request.num_samples
    sampling = sampling_of(experiment, each, request.batch_size or BATCH, on_batch)
    if interact is not None:
        part = interact(target.model, experiment, rows, each, sampling.batch_size, end)[0][SAMPLED]
    else:
        assert policy is not None
        answers = answer_prompts(policy, rows, sampling)
        part = PartAnswers(each, answers, score_answers(experiment, [answers], policy, end)[0].rows)
    best = best_of_n(part, by=request.by)
    made = {
        PAIRS: preference_pairs(rows, part, by=request.by, least_margin=request.least_margin),
        BEST: best_answers(rows, part, by=request.by, keep=request.keep, at_least=request.at_least),
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
