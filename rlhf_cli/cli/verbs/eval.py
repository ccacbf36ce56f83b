"""rlhf eval RUN [key=value ...]       evaluate a trained model on rows that it has not seen: tables, and JSON in
                                    RUN/eval/

RUN is a run folder, run:NAME, or a reward model's own folder; whether it is a reward model or a policy is read from it.
The rows are those that the run held out (data.eval), or --data. key=value changes the run's configuration:
model.path=FOLDER evaluates another policy or a checkpoint, data.eval.path=FILE other rows.

--data FILE      evaluate on these rows: a file, a folder of files or a hub id. A reward model needs prompt, chosen,
                 rejected; a column `subset` gives the accuracy by its values
--set NAME       only this one of the named sets of data.eval (NAME,NAME: these); by default all
--rows N         only N of the rows of each set, evenly spread
--out FOLDER     write there instead of RUN/eval/
--json           print the content of NAME.json instead of tables
--batch-size N   completions in one batch
--trust          run its code, submit its jobs and ask its servers, even if another user made it

for a reward model
--slice COLUMN ...   accuracy by this column's values
--chat           score plain texts as messages of a user and an assistant
--eos            plain texts end with the end-of-sequence token
--no-eos         or do not. By default they end as in the model's training, as they do when it scores as a reward.
                 `offset: auto` subtracts their mean

for a policy
--samples N      completions per prompt beside the greedy one, sampled as in training (default 4; 0 for none)
"""

from __future__ import annotations

import hashlib
import re
from functools import partial
from pathlib import Path

from rlhf_cli.cli.options import Options
from rlhf_cli.cli.output import print_json
from rlhf_cli.cli.run_arguments import one_named, run_at
from rlhf_cli.display.evaluation_tables import show_evaluation
from rlhf_cli.display.terminal import Screen, spinner
from rlhf_cli.errors import EXIT_OK, ConfigError
from rlhf_cli.evaluation.evaluation_results import evaluation_json
from rlhf_cli.evaluation.targets import Target, find_target, set_rows, with_typed_model
from rlhf_cli.launch.freeze import refuse_foreign_code
from rlhf_cli.launch.interactive_answers import interaction
from rlhf_cli.plan.prepare import is_run_name, prepare, prepare_from
from rlhf_cli.plan.sources_and_components import describe_eval_rows, only_set
from rlhf_cli.runs.reward_records import trained_with_eos
from rlhf_cli.runs.run_folder import HELD_OUT, POLICY, REWARD_MODEL
from rlhf_cli.runs.run_status import refuse_links
from rlhf_cli.text.suggest import nearest

_ONLY = {REWARD_MODEL: ("--slice", "--chat", "--eos", "--no-eos"), POLICY: ("--samples",)}
_SAMPLES = 4
_LONGEST_NAME = 100


def run(options: Options) -> int:
    """Evaluate one model, write and print the results, and return the exit code."""
    for flag, least in (("--rows", 1), ("--batch-size", 1), ("--samples", 0)):
        options.number(flag, least=least)  # refuse a wrong number before a model is loaded
    options.refuse_both("--eos", "--no-eos")
    words, data = options.words, options.text("--data")
    named = one_named(words, "rlhf eval", "a run folder, run:NAME or a reward model's folder", finished=True)
    target = find_target(run_at(named, words, where="rlhf eval").path if is_run_name(named) else Path(named))
    other_kind = POLICY if target.kind == REWARD_MODEL else REWARD_MODEL
    for flag in filter(options.on, _ONLY[other_kind]):
        got = f"{target.label}, a {target.kind.replace('_', ' ')}"
        raise options.error(f"{flag} is for a {other_kind.replace('_', ' ')}", got=got)
    if target.run is not None:
        refuse_foreign_code(target.run, trust=options.on("--trust"), command=f"rlhf eval {target.run.typed}")
        refuse_links(target.run.path)
    rows = partial(set_rows, target, data)
    if target.run is None:
        quoted = str(target.model).replace("\\", "\\\\").replace("'", "\\'")
        alone = ["trainer=reward", "model=local", f"model.path='{quoted}'", "data=file"]
        prepared = prepare([*alone, *words], adjust=rows)
    else:
        prepared = prepare_from(target.run, words, adjust=rows)
    target, experiment = with_typed_model(target, prepared), prepared.experiment
    sets = _sets(options, list(experiment.data.evals))

    with spinner("importing torch and TRL"):
        from rlhf_cli.evaluation.evaluation_run import EvaluationRequest, evaluate

    screen, samples = Screen(), options.number("--samples", least=0)
    found = dict[str, object]()
    for eval_set in sets:
        of_set = only_set(experiment, eval_set)
        evaluation, files = evaluate(
            target,
            of_set,
            EvaluationRequest(
                name=_name(options, words, target, eval_set),
                data=data or describe_eval_rows(of_set.data),
                out=options.path("--out"),
                rows=options.number("--rows"),
                slices=options.texts("--slice"),
                samples=_SAMPLES if samples is None else samples,
                batch_size=options.number("--batch-size"),
                as_chat=options.on("--chat"),
                with_eos=_with_eos(options, target),
                trained=prepare_from(target.run, []).experiment if target.run is not None else None,
                interact=interaction(experiment),
                has_own_rows=data is None and not _has_other_rows(words),
            ),
            lambda message: screen.print(f"[dim]{message}"),
        )
        found[eval_set] = evaluation_json(evaluation)
        if not options.as_json:
            show_evaluation(screen, evaluation, files)
    if options.as_json:
        print_json(found.get("", {"sets": found}))
    return EXIT_OK


def _sets(options: Options, known: list[str]) -> list[str]:
    """Return the evaluation sets to evaluate: those of `--set`, by default all; '' is the only one, or none."""
    asked = list(dict.fromkeys(options.names("--set")))
    for name in asked:
        if name not in known:
            expected = f"one of {', '.join(known)}" if any(known) else "no --set: data.eval has no named sets"
            hint = f"--set {close}" if (close := nearest(name, known)) else None
            raise ConfigError(f"there is no evaluation set {name!r}", where="--set", expected=expected, hint=hint)
    return asked or known or [""]


def _with_eos(options: Options, target: Target) -> bool:
    if options.on("--eos") or options.on("--no-eos"):
        return options.on("--eos")
    return trained_with_eos(target.model) is True


def _name(options: Options, words: list[str], target: Target, eval_set: str) -> str:
    """Return the name of the files: rows, `-NAME` of a named set, options that change what plain `eval RUN` gives.

    Only the run's own rows and model give `held_out`, whose mean `offset: auto` subtracts. (If the model was trained on
    the prompts of all of these rows, `evaluate` names the files `training_rows`.)
    """
    data, samples = options.text("--data"), options.number("--samples", least=0)
    parts = ["other_rows" if _has_other_rows(words) else HELD_OUT]
    if data is not None:
        stem = Path(data).name.partition(".")[0]
        parts = [stem if stem and stem != HELD_OUT else f"{stem}_file"]
    parts = [f"{parts[0]}-{eval_set}" if eval_set else parts[0]]
    if (with_eos := _with_eos(options, target)) != (trained_with_eos(target.model) is True):
        parts.append("eos" if with_eos else "no_eos")
    parts += ["chat"] * options.on("--chat")
    if (rows := options.number("--rows")) is not None:
        parts.append(f"{rows}_rows")
    if samples not in (None, _SAMPLES):
        parts.append(f"{samples}_samples")
    # The random numbers of a sampled answer depend on its batch.
    if (batch_size := options.number("--batch-size")) is not None and target.kind == POLICY:
        parts.append(f"batches_of_{batch_size}")
    parts += [_as_name(word) for word in words if not word.lstrip("+").startswith("run.root=")]
    name = "_".join(parts)
    if len(name) <= _LONGEST_NAME:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{name[: _LONGEST_NAME - len(digest) - 1]}_{digest}"


def _has_other_rows(words: list[str]) -> bool:
    return any(word.lstrip("+~").startswith(("data.", "data=", "seed=")) for word in words)


def _as_name(word: str) -> str:
    """Return `temperature_0.5` for `trainer.args.temperature=0.5`; of a path, only the last part is kept."""
    key, equals, value = word.lstrip("+~").partition("=")
    name = f"{key.rpartition('.')[2]}_{Path(value).name}" if equals else word
    if key == "model.path":
        name = Path(value).name
    return re.sub(r"[^A-Za-z0-9.-]+", "_", name).strip("_")
