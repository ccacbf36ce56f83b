"""Check the reward functions, the reward models, and the function that combines them. `trial_problems` calls every
function on a row before torch is loaded, in a fork that can be killed; `advice_on` says what to do about a failed one.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import select
import shlex
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from rlhf_cli.config.rules.metric_rules import unlisted
from rlhf_cli.config.schema.reward_sections import AGGREGATES, Reward
from rlhf_cli.config.schema.section import entries_of
from rlhf_cli.data.images import opened
from rlhf_cli.data.peeking import LEFT_OUT
from rlhf_cli.data.source import Template
from rlhf_cli.errors import ConfigError, RewardError, RlhfError, UserError, described, with_causes
from rlhf_cli.models.model_folders import describe_reward_model
from rlhf_cli.plan.checks.facts import Check, DataFacts, Findings, RewardFacts, Subject
from rlhf_cli.plan.checks.prompt_checks import has_conversations
from rlhf_cli.plan.run_plan import Notice
from rlhf_cli.plan.sources_and_components import KEEP_TIME, StateOfTrainer, component, timeout_of
from rlhf_cli.process import die_with
from rlhf_cli.rewards.completion_text import COLUMN_CHECKS, ColumnCheck
from rlhf_cli.rewards.stack import reward_functions as functions


def reward_problems(subject: Subject, data: DataFacts) -> Check[RewardFacts]:
    """Yield the errors of each reward; return the columns and files that the functions read."""
    is_chat, where, facts = has_conversations(subject.experiment, data), subject.where, RewardFacts()
    for name, reward in subject.experiment.rewards.items():
        key = f"rewards.{name}"
        try:
            if reward.model is not None:
                describe_reward_model(reward.model, where=where(f"{key}.model"), conversational=is_chat)
                if reward.args:
                    raise RewardError("a reward model takes no args", where=where(f"{key}.args"))
                continue
            if reward.environment is not None:
                continue  # tool_checks looks for the method
            args_key, place = f"{key}.args", where(f"{key}.fn")
            function = functions.resolve(str(reward.fn), reward.args, where=place, args_key=args_key, place=where)
            if (file := functions.source_file(str(reward.fn))) is not None:
                facts.files[key] = file
            if functions.compares_rows(function):
                facts.comparing.append(name)
                if reward.isolate:
                    what, hint = "an isolated reward gets each row alone; this compares rows", f"{key}.isolate=false"
                    yield RewardError(what, where=where(f"{key}.isolate"), got="true", hint=hint)
            facts.columns[name] = functions.required_columns(function)
            checks: dict[str, ColumnCheck] = getattr(getattr(function, "func", function), COLUMN_CHECKS, {})
            facts.checks[name] = {column: checks[column] for column in facts.columns[name] if column in checks}
            parameters = inspect.signature(function).parameters
            facts.logs |= "log_metric" in parameters
            for argument, parameter in parameters.items():
                default, is_column = parameter.default, argument in data.columns and argument not in reward.args
                if is_column and isinstance(default, int | float | str):
                    text = f"{key} gets the column {argument!r}; {key}.args.{argument}={default} keeps its default"
                    yield Notice("rewards", text)
            facts.missing_arguments[name] = functions.missing_arguments(function, only_by_keyword=not data.columns)
        except UserError as error:
            yield error
    return facts


def unfed_problems(subject: Subject, rewards: RewardFacts) -> Findings:
    """Yield an error for each setting about turns where completions have one, and a notice for unlogged metrics.

    Tools, an environment, a rollout function or a trainer of the user's may give a completion several turns, and log;
    TRL takes one for a single message, also in a conversation. `rlhf score` does not ask this: transcripts have turns.
    """
    experiment, trainer = subject.experiment, subject.experiment.trainer
    if experiment.interacts or trainer.own_class is not None:
        return
    keys = {f"rewards.{name}.per": "turn" for name, reward in experiment.rewards.items() if reward.per is not None}
    keys |= {"truncation.also": ", ".join(experiment.truncation.also)} if experiment.truncation.also else {}
    for key, value in keys.items():
        what, expected = "every completion of this run is a single turn", "`tools`, `environment` or `rollout`"
        hint = f"'~{key}', or tools.NAME.fn=./tools.py:NAME, or rollout.fn=./mine.py:rollout"
        yield ConfigError(what, where=subject.where(key), got=value, expected=expected, hint=hint)
    if rewards.logs or trainer.callbacks:
        return
    read = [("stop", rule.metric) for rule in entries_of(experiment.stop).values()]
    read += [("expect", target.metric) for target in entries_of(experiment.expect).values()]
    for key, name in read:
        if (unknown := unlisted(name, experiment)) is not None:
            nearest = f"; the nearest is {unknown[1]}" if unknown[1] else ""
            yield Notice("no effect", f"{subject.where(key)} reads {name!r}, and {unknown[0]}{nearest}")


def function_problems(subject: Subject) -> Check[dict[str, Path]]:
    """Import the user's advantages and aggregate; return their files. Raise RewardError if the aggregate is missing."""
    aggregate, section, named = subject.experiment.aggregate, subject.experiment.advantages, dict[str, str]()
    if section is not None:
        from rlhf_cli.algorithms.user_function import AdvantageFunction

        named["advantages"] = section.fn
        try:
            AdvantageFunction(section.fn, section.args, place=subject.where)
        except UserError as error:
            yield error
    if aggregate not in AGGREGATES:
        named["aggregate"], where = aggregate, subject.where("aggregate")
        signature = inspect.signature(functions.import_function(aggregate, where=where))
        try:
            signature.bind(rewards={}, weights={})
        except TypeError:
            what = "the aggregate must take the arguments `rewards` and `weights`"
            expected = "f(rewards, weights): by reward, a list of scores and a number; returns one total per row"
            got = f"{aggregate}({', '.join(signature.parameters)})"
            yield RewardError(what, where=where, got=got, expected=expected)
    return {key: file for key, fn in named.items() if (file := functions.source_file(fn)) is not None}


_UNSET = "the environment variable {} is not set"
_EACH = "return one entry per completion: [score(text) for text in completions]"
_RETURNED = (
    (r"values for \d+ completions|a list: (?:float|int|bool|str):", _EACH),
    (r"a list: dict: \{'(\w+)'", 'return the list in it: result["{}"]'),
    (r"a list: NoneType", f"it returns None, or ends without `return`; {_EACH}"),
    (r"a list: \w+", "return list(scores)"),
    (r"values per token", "return one number per completion: a list or tuple for one holds its tokens or spans"),
    (r"row \d+: dict: \{'(\w+)'", 'return [result["{}"] for result in results]'),
    (r"row \d+: -?(?:nan|inf|\d)", "return None instead of NaN or infinity: the row then has no score"),
    (r"a number for row", "return [float(score) for score in scores]"),
    (r"", "return the numbers that are expected"),
)
"""What a function returned -> what to do, with the key of a dictionary."""
_OF_THE_TRIAL = re.compile(r"'(NoneType|int|float|bool|StateOfTrainer)'")
"""Types that a function may have made of the completion of the trial, or that a run replaces."""
TRIAL_S, _QUIET_S = 20.0, 2.0
LATE = "no answer within"
_ANSWERS = ("answer", "solution", "ground_truth", "target")
_passed: set[str] = set()  # the calls that passed in this process: the jobs of a sweep make the same ones


def trial_problems(subject: Subject, data: DataFacts) -> Findings:
    """Yield an error for each function that fails on the first row, or a notice if it is late or may fail (`on_error`).

    It gets a group of completions, at least two: the row's answer, or "1", as text or as a message. Their token ids are
    the text's bytes. The last one ends in a blank, so that a fixed number of values for each row does not pass for one
    value per token. It does not call reward models, functions that ask a server or run code, or a `trial: false`.
    """
    experiment, torch = subject.experiment, sys.modules.get("torch")
    rows = data.sources[0].rows if data.sources else None
    if torch is not None and torch.cuda.is_initialized():
        return  # such a process cannot be forked
    num_rows = max(2, experiment.trainer.whole("num_generations") or 2)
    yield from _advantage_trial(subject, num_rows)
    if not rows or "prompt" not in rows.column_names:
        return
    row = opened(rows[0])
    text = next((str(row[name]) for name in _ANSWERS if isinstance(row.get(name), str | int | float)), "1")
    columns = {"prompts" if name == "prompt" else name: value for name, value in row.items() if name != "completion"}
    of_rollouts = {"environments", *experiment.rollout_columns}
    for name, reward in experiment.rewards.items():
        called = repr((reward.fn, reward.args, reward.isolate, columns, text))
        if not reward.trial or reward.fn is None or reward.fn.startswith(KEEP_TIME) or called in _passed:
            continue
        parameters = inspect.signature(functions.resolve(reward.fn, reward.args, where="fn")).parameters
        required = functions.required_parameters(parameters)
        if of_rollouts.intersection(required) or (reward.per and experiment.rollout is not None):
            continue  # only a rollout has what it reads, and its turns
        limit_s = min(timeout_of(reward) or TRIAL_S, TRIAL_S)
        texts = [text] if reward.isolate else [text] * (num_rows - 1) + [f"{text} "]
        call = partial(_failure, name, reward, columns, texts, limit_s)
        if (failure := in_fork(call, limit_s, f"the reward {name!r}")) is None:
            _passed.add(called)
            continue
        (got, place), what = failure, f"the reward {name!r} did not score the first row of the data"
        is_late = got.startswith(LATE) and limit_s == TRIAL_S
        if is_late or reward.on_error != "raise" or experiment.launch.slurm is not None:
            yield Notice("rewards", f"{what}, with the completion {text!r:.40}: {got}{place}")
            continue
        where, template = subject.where(f"rewards.{name}.fn") + place, experiment.data.model_dump()["prompt"]
        left_out = (column for column in data.sources[0].preview.left_out if got == f"KeyError: {column!r}")
        advice = next(map(LEFT_OUT.format, left_out), None) or advice_on(name, got, row, template)
        expected = f"a number or None for each {reward.per or 'completion'}, here {text!r:.60}"
        yield RewardError(what, where=where, got=got, expected=expected, advice=advice)


def _advantage_trial(subject: Subject, group: int) -> Findings:
    """Yield what the function in `advantages` does wrong with an example round, of groups of this size."""
    if (section := subject.experiment.advantages) is None:
        return
    from rlhf_cli.algorithms.user_function import AdvantageFunction, example_round

    function = AdvantageFunction(section.fn, section.args, place=subject.where)
    example = example_round(group, dict.fromkeys(subject.experiment.rewards, 1.0))

    def failure() -> tuple[str, str] | None:
        try:
            function(example)
        except RlhfError as error:
            return _reason(error, section.fn, function.function)
        return None

    if (found := in_fork(failure, TRIAL_S, section.fn)) is not None:
        what = "the function made no advantages of an example: two groups with totals of 0 and 1, the last missing"
        where, expected = subject.where("advantages.fn") + found[1], "finite numbers for the rows with a total"
        yield RewardError(what, where=where, got=found[0], expected=expected)


def in_fork(failure: Callable[[], tuple[str, str] | None], limit_s: float, what: str) -> tuple[str, str] | None:
    """Return the failure of the call of `what` and its place in the user's file, None if it passed."""
    from rlhf_cli.rewards.stack import calling, reward_stack  # noqa: F401  imported once, and not by each fork

    parent, (receive, send) = os.getpid(), os.pipe()
    if (pid := os.fork()) == 0:
        with suppress(BaseException):
            os.setsid()
            die_with(parent)
            for stream in (0, 1, 2):
                os.dup2(os.open(os.devnull, os.O_RDWR), stream)
            try:
                found = failure()
            except BaseException as error:
                found = (described(error), "")
            os.write(send, json.dumps(found).encode())
        os._exit(0)
    os.close(send)
    try:
        if not (is_ready := select.select([receive], [], [], _QUIET_S)[0]):
            print(f"trying {what}, at most {limit_s:g} s ...", file=sys.stderr)
            is_ready = select.select([receive], [], [], limit_s)[0]
        answer = os.read(receive, 1 << 16) if is_ready else json.dumps([f"{LATE} {limit_s:g} s", ""])
    finally:
        with suppress(OSError):
            os.killpg(pid, signal.SIGKILL)  # with the processes that it has started
        os.waitpid(pid, 0)
        os.close(receive)
    return tuple(found) if (found := json.loads(answer or '["its process died", ""]')) else None


def _failure(
    name: str, reward: Reward, columns: dict[str, object], texts: list[str], limit_s: float
) -> tuple[str, str] | None:
    from rlhf_cli.rewards.stack.reward_stack import RewardStack

    function = functions.resolve(str(reward.fn), reward.args, where="fn")
    stack = RewardStack([replace(component(name, reward, function), gates=(), on_error="raise", timeout_s=limit_s)])
    stack.decode = lambda ids, **_: bytes(ids).decode(errors="replace")
    batch: dict[str, object] = {name: [value] * len(texts) for name, value in columns.items()}
    said = [[{"role": "assistant", "content": text}] for text in texts]
    batch["completions"] = texts if isinstance(columns["prompts"], str) else said
    batch["completion_ids"] = [list(text.encode()) for text in texts]
    if not reward.isolate:
        batch |= {"log_extra": lambda column, values: None, "log_metric": lambda name, value: None}
        batch["trainer_state"] = StateOfTrainer(0, 1)
    try:
        stack.evaluate(**batch)
    except RlhfError as error:
        return _reason(error, str(reward.fn), function)
    return None


def _reason(error: RlhfError, fn: str, function: Callable[..., object]) -> tuple[str, str]:
    """Return why a call of the user's function failed, and its last line in the user's file."""
    file, own = functions.source_file(fn), inspect.unwrap(getattr(function, "func", function))
    frames = list[traceback.FrameSummary]()
    got = f"{error.what}: {error.got}" if isinstance(error, RewardError) else str(error.got)
    for cause in with_causes(error):
        frames += (own_frames := traceback.extract_tb(cause.__traceback__))
        if isinstance(cause, KeyError) and own_frames and own_frames[-1].filename in (os.__file__, "<frozen os>"):
            got = _UNSET.format(*cause.args)
    lines = [frame.lineno for frame in frames if file is not None and frame.filename == str(file)]
    code = getattr(own, "__code__", None) or getattr(type(own).__call__, "__code__", None)
    line = lines[-1] if lines else getattr(code, "co_firstlineno", 1)
    return f"{got:.300}", f" ({file.name}:{line})" if file is not None else ""


def advice_on(name: str, got: str, row: Mapping[str, object], template: Template | None) -> str:
    """Return what to do about a reward that failed with `got` on a row, whose prompt `template` made."""
    if got.startswith(f"reward {name!r} "):
        found, told = next((found, told) for pattern, told in _RETURNED if (found := re.search(pattern, got)))
        return f"it would return the same in a run; {told.format(*found.groups())}"
    if found := re.match(_UNSET.format(r"(\w+)"), got):
        return f"export {found[1]}=..., in the shell that starts the run"
    if (found := re.match(r"KeyError: '(\w+)'$", got)) and found[1] not in row:
        return f"the columns are {', '.join(row)}; data.rename.{found[1]}=COLUMN gives one of them this name"
    if "string indices must be integers" in got and isinstance(row["prompt"], str):
        content = json.dumps(template if isinstance(template, str) else "{prompt}", ensure_ascii=False)
        typed = f"data.prompt={shlex.quote(f'[{{role: user, content: {content}}}]')}"
        return f"prompts and completions are texts here; {typed} makes messages of them, as the function may expect"
    if re.search(r"'list'", got) and isinstance(row["prompt"], list):
        return "each prompt and completion is a list of messages here; completion[0]['content'] is the text of one"
    if found := re.match(r"(?:ImportError|ModuleNotFoundError):(?: No module named '(\w+))?", got):
        return f"install the package that has {found[1] or 'it'} where rlhf is installed: the run needs it too"
    is_made = (found := _OF_THE_TRIAL.search(got)) and found[1] not in {type(value).__name__ for value in row.values()}
    if re.match(r"(Type|Attribute|Name)Error:", got) and not is_made:
        return "the run would fail in the same way: mend the line"
    # The run may differ from the trial.
    return f"set rewards.{name}.trial=false if the function works only during the run"
