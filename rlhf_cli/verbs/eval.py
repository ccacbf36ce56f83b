"""rlhf eval RUN [key=value ...]       what a trained model is worth on rows it has not seen: tables, JSON and a picture
                                    in RUN/eval/

RUN is a run folder, run:NAME, or a reward model's own folder; whether it holds a reward model or a policy is read from
it. The rows are those the run held out (data.eval), else --data. key=value changes the run's configuration:
model.path=FOLDER takes another policy or a checkpoint, data.eval.path=FILE other rows.

--data FILE      evaluate on these rows: a file, a folder of files or a hub id. For a reward model prompt, chosen,
                 rejected; a column `subset` gives the RewardBench table
--rows N         only N of the rows, evenly spread
--out FOLDER     write there instead of RUN/eval/
--json           print what is written as NAME.json instead of the tables
--batch-size N   completions in one batch
--trust          run the reward files and other code that the run names, though somebody else made it

for a reward model
--slice COLUMN   accuracy by this column's values; may be given several times
--chat           score plain texts as a user's and an assistant's message
--eos, --no-eos  plain texts end with the end-of-sequence token, or do not; without either as those did that the model
                 was trained on, and so it scores as a reward, too. `offset: auto` subtracts their mean

for a policy
--samples K      completions a prompt beside the greedy one, sampled as in training (default 4; 0 for none)
--against RUN2   win rate against another run's policy on the same prompts, by this run's rewards
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from rlhf_cli.errors import EXIT_OK, ConfigError, RunError
from rlhf_cli.evaluate.evaluation_target import EvaluationRows, Target, find_target, words_for_model_alone
from rlhf_cli.jobs.foreign_code import refuse_foreign_code
from rlhf_cli.jobs.prepare import Prepared, prepare, prepare_from
from rlhf_cli.jobs.run_names import find_run, is_run_name
from rlhf_cli.measure.evaluation_files import evaluation_json
from rlhf_cli.plan.data_sources import describe_eval_rows
from rlhf_cli.runs.evaluations import HELD_OUT, POLICY, REWARD_MODEL
from rlhf_cli.runs.run_folder import names_a_run
from rlhf_cli.runs.text_endings import trained_with_eos
from rlhf_cli.screen.evaluation_tables import show_evaluation

_ONLY = {
    REWARD_MODEL: {"--slice": "slice", "--chat": "chat", "--eos": "eos"},
    POLICY: {"--samples": "samples", "--against": "against"},
}
_SAMPLES = 4
_LONGEST_NAME = 100


def run(argv: list[str]) -> int:
    """Evaluate one model, write the figures and show them; returns the exit code.

    Raises RunError where no run is named, ConfigError for an option that does not fit the model.
    """
    options, words = _parse(argv)
    named = next((word for word in words if names_a_run(word)), None)
    if named is None:
        raise RunError(
            "no run was named", expected="a run folder, run:NAME or a reward model's folder", hint="rlhf eval RUN"
        )
    words.remove(named)
    target = _target(named, words)
    _refuse_of_other_kind(options, target)
    if target.run is not None:
        refuse_foreign_code(target.run, trust=options.trust, command=f"rlhf eval {target.run.shown}")
    prepared = _prepare(target, words, options.data)
    experiment = prepared.experiment
    if _is_typed(words, "model.path"):
        other = Path(str(experiment.model.path))
        target = replace(target, model=other, label=f"{other.name} by the rewards of {target.label}")
    against = _target(options.against, []) if options.against is not None else None
    if against is not None and not (against.kind == POLICY and experiment.rewards):
        raise ConfigError(
            "there is nothing to win by",
            where="--against",
            got="a reward model" if against.kind == REWARD_MODEL else f"{target.label}, which has no rewards",
            expected="two policies, the first with rewards",
        )
    name = _name(options, words, target, against)

    from rlhf_cli.evaluate.evaluation_run import Options, evaluate  # torch comes with it

    screen = Console(stderr=options.json)
    evaluated = evaluate(
        target,
        experiment,
        Options(
            name=name,
            data=options.data or describe_eval_rows(experiment.data),
            out=options.out,
            rows=options.rows,
            slices=options.slice or [],
            samples=_SAMPLES if options.samples is None else options.samples,
            batch_size=options.batch_size,
            as_chat=bool(options.chat),
            with_eos=_with_eos(options, target),
            against=against,
        ),
        lambda message: screen.print(f"[dim]{message}", highlight=False),
    )
    if options.json:
        json.dump(evaluation_json(evaluated.evaluation), sys.stdout, indent=2)
        print()
    else:
        show_evaluation(screen, evaluated.evaluation, evaluated.files)
    return EXIT_OK


def _prepare(target: Target, words: list[str], data: str | None) -> Prepared:
    rows = EvaluationRows(target, data)
    if target.run is None:
        return prepare(words_for_model_alone(target.model, words), adjust=rows)
    return prepare_from(target.run, words, adjust=rows)


def _parse(argv: list[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(prog="rlhf eval", add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--data")
    parser.add_argument("--rows", type=_at_least(1))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--batch-size", type=_at_least(1))
    parser.add_argument("--trust", action="store_true")
    parser.add_argument("--slice", action="append")
    parser.add_argument("--chat", action="store_true", default=None)
    parser.add_argument("--eos", action=argparse.BooleanOptionalAction)
    parser.add_argument("--samples", type=_at_least(0))
    parser.add_argument("--against")
    try:
        options, rest = parser.parse_known_args(argv)
    except argparse.ArgumentError as error:
        raise ConfigError(str(error), where="command line", hint="rlhf eval --help") from None
    return options, rest


def _at_least(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        value = int(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"{value} is below {least}")
        return value

    number.__name__ = "number"
    return number


def _target(named: str, words: list[str]) -> Target:
    if not is_run_name(named):
        return find_target(Path(named))
    root = next((word.partition("=")[2] for word in words if word.lstrip("+").startswith("run.root=")), "runs")
    return find_target(find_run(named, root, where="rlhf eval").path)


def _refuse_of_other_kind(options: argparse.Namespace, target: Target) -> None:
    other = POLICY if target.kind == REWARD_MODEL else REWARD_MODEL
    for word, name in _ONLY[other].items():
        if getattr(options, name) is not None:
            raise ConfigError(
                f"{word} is for a {other.replace('_', ' ')}",
                where="command line",
                got=f"{target.label}, a {target.kind.replace('_', ' ')}",
                hint="rlhf eval --help",
            )


def _is_typed(words: list[str], key: str) -> bool:
    return any(word.lstrip("+").startswith(f"{key}=") for word in words)


def _with_eos(options: argparse.Namespace, target: Target) -> bool:
    """Return whether plain texts end with the end-of-sequence token: as in the model's training if nothing is said."""
    return trained_with_eos(target.model) is True if options.eos is None else bool(options.eos)


def _name(options: argparse.Namespace, words: list[str], target: Target, against: Target | None) -> str:
    """Return the name of the files: the rows, then all that sets the figures apart from those of plain `eval RUN`.

    Only the run's own rows and model make `held_out`, whose mean `offset: auto` takes.
    """
    has_other_rows = any(word.lstrip("+~").startswith(("data.", "data=", "seed=")) for word in words)
    parts = ["other_rows" if options.data is None and has_other_rows else _rows_name(options.data)]
    if _with_eos(options, target) != (trained_with_eos(target.model) is True):
        parts.append("eos" if options.eos else "no_eos")
    parts += ["chat"] * bool(options.chat)
    if options.rows is not None:
        parts.append(f"{options.rows}_rows")
    if options.samples not in (None, _SAMPLES):
        parts.append(f"{options.samples}_samples")
    # The batch decides which random numbers a sampled answer gets.
    if options.batch_size is not None and target.kind == POLICY:
        parts.append(f"batches_of_{options.batch_size}")
    parts += [_as_name(word) for word in words if not _is_typed([word], "run.root")]
    if against is not None:
        parts.append(f"against_{_as_name(against.label)}")
    name = "_".join(parts)
    if len(name) <= _LONGEST_NAME:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{name[: _LONGEST_NAME - len(digest) - 1]}_{digest}"


def _rows_name(data: str | None) -> str:
    """Return `held_out`, or the name of the file that `--data` gave."""
    if data is None:
        return HELD_OUT
    stem = Path(data).name.partition(".")[0]
    return stem if stem and stem != HELD_OUT else f"{stem}_file"


def _as_name(word: str) -> str:
    """Turn `trainer.args.temperature=0.5` into `temperature_0.5`; of a path in it take the last part."""
    key, equals, value = word.lstrip("+~").partition("=")
    name = f"{key.rpartition('.')[2]}_{Path(value).name}" if equals else word
    if key == "model.path":
        name = Path(value).name
    return re.sub(r"[^A-Za-z0-9.-]+", "_", name).strip("_")
