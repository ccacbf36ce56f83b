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

for a reward model
--slice COLUMN   accuracy by this column's values; may be given several times
--chat           score plain texts as a user's and an assistant's message
--eos            end plain texts with the end-of-sequence token, as TRL's RewardTrainer does in training. Without it
                 the scores are those the model gives as a reward; `offset: auto` subtracts their mean

for a policy
--samples K      completions a prompt beside the greedy one, sampled as in training (default 4; 0 for none)
--against RUN2   win rate against another run's policy on the same prompts, by this run's rewards
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from rlhf_cli.errors import EXIT_OK, ConfigError, RunError
from rlhf_cli.evaluate.target import Target, experiment_of, find_target, no_rows, rows_name
from rlhf_cli.plan.finished_runs import find_run, is_run_name, resolve_runs
from rlhf_cli.plan.sources import eval_rows_told
from rlhf_cli.runs.evaluations import HELD_OUT, POLICY, REWARD_MODEL
from rlhf_cli.screen.evaluation import show_evaluation

_ONLY = {
    REWARD_MODEL: {"--slice": "slice", "--chat": "chat", "--eos": "eos"},
    POLICY: {"--samples": "samples", "--against": "against"},
}
_SAMPLES = 4


def run(argv: list[str]) -> int:
    options, overrides = _parse(argv)
    named = next((word for word in overrides if "=" not in word and not word.startswith("-")), None)
    if named is None:
        raise RunError(
            "no run was named", expected="a run folder, run:NAME or a reward model's folder", hint="rlhf eval RUN"
        )
    overrides.remove(named)
    target = _target(named, overrides)
    _refuse_of_other_kind(options, target)
    experiment = resolve_runs(experiment_of(target, overrides, options.data))
    if target.kind == REWARD_MODEL and experiment.data.eval is None:
        raise no_rows(target)
    if any(word.startswith("model.path=") for word in overrides):
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
    name = _name(options, overrides, target, against)

    from rlhf_cli.evaluate.run import Options, evaluate  # torch comes with it

    screen = Console(stderr=options.json)
    evaluated = evaluate(
        target,
        experiment,
        Options(
            name=name,
            data=options.data or eval_rows_told(experiment.data),
            out=options.out,
            rows=options.rows,
            slices=options.slice or [],
            samples=_SAMPLES if options.samples is None else options.samples,
            batch_size=options.batch_size,
            as_chat=options.chat,
            with_eos=options.eos,
            against=against,
        ),
        lambda what: screen.print(f"[dim]{what}", highlight=False),
    )
    if options.json:
        json.dump(evaluated.content, sys.stdout, indent=2)
        print()
    else:
        show_evaluation(screen, evaluated.content, evaluated.files)
    return EXIT_OK


def _parse(argv: list[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(prog="rlhf eval", add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--data")
    parser.add_argument("--rows", type=_at_least(1))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--batch-size", type=_at_least(1))
    parser.add_argument("--slice", action="append")
    parser.add_argument("--chat", action="store_true")
    parser.add_argument("--eos", action="store_true")
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


def _target(named: str, overrides: list[str]) -> Target:
    if not is_run_name(named):
        return find_target(Path(named))
    root = next((word.partition("=")[2] for word in overrides if word.startswith("run.root=")), "runs")
    return find_target(find_run(named, root, where="rlhf eval").path)


def _refuse_of_other_kind(options: argparse.Namespace, target: Target) -> None:
    other = POLICY if target.kind == REWARD_MODEL else REWARD_MODEL
    for word, name in _ONLY[other].items():
        if getattr(options, name) not in (None, False):
            raise ConfigError(
                f"{word} is for a {other.replace('_', ' ')}",
                where="command line",
                got=f"{target.label}, a {target.kind.replace('_', ' ')}",
                hint="rlhf eval --help",
            )


def _name(options: argparse.Namespace, overrides: list[str], target: Target, against: Target | None) -> str:
    """What the files are called. Only the run's own rows and model make `held_out`, whose mean `auto` takes."""
    changed = any(word.lstrip("+").startswith(("data.", "seed=")) for word in overrides)
    name = rows_name(options.data) if options.data is not None or not changed else "other_rows"
    if target.kind == REWARD_MODEL:
        is_part = options.rows is not None and name == HELD_OUT
        name += "_eos" * options.eos + f"_{options.rows}_rows" * is_part
    name += "".join(f"_{Path(word).name}" for word in overrides if word.startswith("model.path="))
    return name if against is None else f"{name}_against_{against.label.replace('/', '_')}"
