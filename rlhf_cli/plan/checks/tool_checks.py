"""Check what the model may call: functions, environments, rollout functions, and how the chat template shows calls."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias, cast

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.trainer_sections import ENVIRONMENT_COLUMN, environment_key
from rlhf_cli.data.model_limits import TEMPLATE_ERRORS
from rlhf_cli.errors import ConfigError, DataError, ModelError, RewardError, UserError, described, in_a_line
from rlhf_cli.models.tokenizer_files import TokenizerFiles
from rlhf_cli.plan.checks.facts import Check, DataFacts, Findings, Subject
from rlhf_cli.plan.checks.prompt_checks import has_conversations
from rlhf_cli.plan.checks.reward_checks import LATE, TRIAL_S, in_fork
from rlhf_cli.plan.row_tokens import rendered
from rlhf_cli.plan.run_plan import Notice
from rlhf_cli.plan.stack_building import called_methods, environment_of, interactions_of
from rlhf_cli.rewards.stack.reward_functions import import_function, source_file
from rlhf_cli.text.json_values import JsonTree, JsonValue
from rlhf_cli.text.suggest import nearest
from rlhf_cli.tools_and_environments import NO_TOOLS, UNKNOWN, Counts, Function, ToolError, schemas_of, tools_of

Tried: TypeAlias = tuple[str, str] | None
"""What failed and why. Before a failed call, which may not fail in a run, stands a line with its effect."""
_EXAMPLES: dict[str, JsonValue] = {"integer": 1, "number": 1.5, "boolean": True, "array": [], "object": {}}


def interaction_problems(subject: Subject) -> Check[dict[str, Path]]:
    """Import all tools, environments and the rollout function; return their files by key."""
    experiment, where = subject.experiment, subject.where
    named = {f"tools.{name}": tool.fn for name, tool in experiment.tools.items()}
    named |= {environment_key(name): section.own_class for name, section in experiment.environments.items()}
    named |= {"rollout": experiment.rollout.fn} if experiment.rollout is not None else {}
    files, classes = dict[str, Path](), list[type]()
    for key, fn in named.items():
        place = where(f"{key}.class" if key.startswith("environment") else f"{key}.fn")
        try:
            if key.startswith("environment"):
                classes.append(environment_of(fn, place))
                yield from _undescribed(called_methods(subject.experiment, classes[-1]), fn, place)
            elif key == "rollout":
                function = import_function(fn, where=place)
                try:
                    inspect.signature(function).bind([], object())
                except TypeError:
                    what, got = "the rollout function takes other arguments", f"{fn}{inspect.signature(function)}"
                    expected = "def rollout(prompts, trainer): it returns prompt_ids, completion_ids and logprobs"
                    raise RewardError(what, where=place, got=got, expected=expected) from None
            else:
                yield from _undescribed({key.removeprefix("tools."): import_function(fn, where=place)}, fn, place)
        except UserError as error:
            yield error
        else:
            if (file := source_file(fn)) is not None:
                files[key] = file
    if len(classes) == len(experiment.environments):
        yield from _scores(subject, classes)
    called = [
        *experiment.tools,
        *dict.fromkeys(name for each in classes for name in called_methods(subject.experiment, each)),
        UNKNOWN,
    ]
    for name in dict.fromkeys(name for name in called if called.count(name) > 1):
        place = where(f"tools.{name}" if name in experiment.tools else "environment")
        expected = f"another than the environment's methods and {UNKNOWN!r}, which counts calls without a tool"
        yield ConfigError(f"the name {name!r} is taken", where=place, expected=expected, advice=f"name it my_{name}")
    return files


def _undescribed(tools: Mapping[str, Function], fn: str, place: str) -> Iterator[UserError]:
    """Yield an error for each function that the chat template cannot describe to the model."""
    from transformers.utils.chat_template_utils import get_json_schema

    for name, tool in tools.items():
        try:
            if not inspect.isfunction(tool):
                raise TypeError(f"it is no function, but a {type(tool).__name__}")
            for one in inspect.signature(tool).parameters.values():
                if one.kind not in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY) and one.name != "self":
                    raise TypeError(f"the model names each argument, and {one.kind.description} {one} has no name")
            get_json_schema(tool)
        except Exception as error:
            what = f"the model cannot be told what the tool {name!r} does"
            expected = "a type for every argument, and a docstring with a line for each: Args:, then `a: A number.`"
            expected = (
                expected if inspect.isfunction(tool) else f"a function that calls it: def {name}(...), with {expected}"
            )
            yield RewardError(what, where=place, got=f"{fn}: {in_a_line(error)}", expected=expected)


def _scores(subject: Subject, classes: list[type]) -> Iterator[UserError | Notice]:
    """Yield an error for each reward that names no method, and a notice for a score that no reward reads."""
    methods = {name for each in classes for name, _ in inspect.getmembers(each, inspect.isfunction)}
    for name, reward in subject.experiment.rewards.items():
        asked = reward.environment
        if asked is not None and classes and asked not in methods - {"reset"}:
            public = sorted(other for other in methods if not other.startswith("_") and other != "reset")
            close = nearest(asked, public)
            key, got = f"rewards.{name}.environment", ", ".join(each.__name__ for each in classes)
            expected = f"one of {', '.join(public)}" if public else "a method that returns a number"
            what, hint = f"the environment has no method {asked!r}", f"{key}={close}" if close else None
            yield RewardError(what, where=subject.where(key), got=got, expected=expected, hint=hint)
    if NO_TOOLS[1] in methods - {reward.environment for reward in subject.experiment.rewards.values()}:
        yield Notice("environment", "its get_reward is not used: rewards.NAME.environment=get_reward uses it")


def conversation_problems(subject: Subject, data: DataFacts) -> Findings:
    """Yield an error for plain-text prompts, in which nothing can be called, and for unknown names of environments."""
    experiment = subject.experiment
    used = [name for name in ("tools", "environment") if getattr(experiment, name)]
    if used and data.columns and not has_conversations(experiment, data):
        what = f"the prompts are plain texts, and a model calls the {used[0]} in a conversation"
        expected = "a prompt of messages: [{role: user, content: ...}]"
        hint = "data.prompt='[{role: user, content: \"{prompt}\"}]', or '~" + used[0] + "'"
        yield DataError(what, where=subject.where("data"), got=data.described, expected=expected, hint=hint)
    if not isinstance(experiment.environment, dict):
        return
    for read in data.sources:
        if read.rows is None or ENVIRONMENT_COLUMN not in read.columns:
            continue
        names = {str(read.rows[row][ENVIRONMENT_COLUMN]) for row in range(len(read.rows))}
        if unknown := sorted(names - set(experiment.environment)):
            close = nearest(unknown[0], experiment.environment)
            what = f"rows name an environment that does not exist: {unknown[0]}"
            where, got = f"{read.source.name}, column {ENVIRONMENT_COLUMN}", ", ".join(unknown[:5])
            expected, advice = ", ".join(experiment.environment), (f"write {close}" if close else None)
            yield DataError(what, where=where, got=got, expected=expected, advice=advice)


def _example_calls(tools: Mapping[str, Function]) -> dict[str, JsonTree]:
    """Return name -> arguments made up by their types; a text is "1"."""
    made = dict[str, JsonTree]()
    for name, schema in zip(tools, cast("list[Any]", schemas_of(tools)), strict=True):
        shapes = schema["function"]["parameters"]["properties"].items()
        made[name] = {key: shape.get("enum", [_EXAMPLES.get(str(shape.get("type")), "1")])[0] for key, shape in shapes}
    return made


def _all_tools(subject: Subject) -> dict[str, Function]:
    """Return all tools that can be described to the model; `interaction_problems` reports the others."""
    found = dict[str, Function]()
    with suppress(UserError):
        for name, tool in subject.experiment.tools.items():
            found[name] = import_function(tool.fn, where="")
        for section in subject.experiment.environments.values():
            found |= called_methods(subject.experiment, environment_of(section.own_class, ""))
    return {name: tool for name, tool in found.items() if not list(_undescribed({name: tool}, "", ""))}


def call_problems(subject: Subject) -> Findings:
    """Yield an error if the chat template cannot show a call, or if the call that it shows cannot be read back: TRL
    would take each call for plain text, without a word.
    """
    tools, tokenizer = _all_tools(subject), subject.tokenizer
    if not tools or tokenizer is None or tokenizer.chat_template is None:
        return
    settings = subject.experiment.trainer.args.get("chat_template_kwargs")
    given = {**(settings if isinstance(settings, dict) else {}), "tools": schemas_of(tools)}
    calls = _example_calls(tools).items()
    judged = replace(tokenizer, other_template=tokenizer.chat_template)  # TRL wants it of the default one, too
    problems = (_problem_of_call(name, arguments, judged, given) for name, arguments in calls)
    for what, got, expected in islice(filter(None, problems), 1):
        where = subject.where("model.chat_template" if subject.experiment.model.chat_template else "model.path")
        hint = "model=tiny_calls  # an embedded model whose template can"
        yield ModelError(what, where=where, got=f"{got:.400}", expected=expected, hint=hint)


def _problem_of_call(
    name: str, arguments: JsonTree, tokenizer: TokenizerFiles, given: Mapping[str, Any]
) -> tuple[str, str, str] | None:
    """Return what is wrong with a call and its result in this template: what, got, expected; None if it is sound."""
    call = {"type": "function", "function": {"name": name, "arguments": arguments}}
    asked: list[Mapping[str, object]] = [{"role": "user", "content": "1+1"}]
    calling = [*asked, {"role": "assistant", "content": "", "tool_calls": [call]}]
    try:
        prefix = rendered(asked, tokenizer, given)
        called = rendered(calling, tokenizer, {**given, "add_generation_prompt": False})
        whole = rendered([*calling, {"role": "tool", "name": name, "content": "result-7"}], tokenizer, given)
    except TEMPLATE_ERRORS as error:
        return "the chat template has no place for calls", in_a_line(error), "it renders a call and its result"
    if lost := [word for word in (name, *arguments, "result-7") if word not in whole]:
        return f"the chat template leaves out {lost[0]!r}", whole, "the call's name, its arguments and its result"
    template = tokenizer.settings.get("response_template")
    if not isinstance(template, dict):
        spec = importlib.util.find_spec("trl")
        folder = Path(str(spec.origin)).parent / "chat_templates" if spec is not None else Path()
        known = {file.read_text(encoding="utf-8") for file in folder.glob("*.jinja")}
        if tokenizer.chat_template in known or "response_schema" in tokenizer.settings:
            return None  # TRL brings what reads it back, and a template that keeps beginnings
        got = "no response_template in tokenizer_config.json, and a chat template that TRL does not know"
        expected = "model.response_template for this chat template, as in exp=smollm2_calculator"
        return "nothing reads a call back, so no call would be seen", got, expected
    if not (called.startswith(prefix) and whole.startswith(called.rstrip("\n"))):
        what = "the chat template renders a message in another way once others follow it"
        return what, whole, f"a text that begins with {called!r}"
    from transformers.utils.chat_parsing import parse_response

    try:
        parsed = parse_response(called[len(prefix) :], {**template}, prefix=prefix, tools=given["tools"])
    except (ValueError, TypeError, KeyError) as error:
        parsed = {"error": in_a_line(error)}
    if parsed.get("tool_calls") == [call]:
        return None
    what = "response_template does not read back the call that the chat template shows, so no call would be seen"
    return what, f"{called[len(prefix) :]!r} was read as {parsed}", f"tool_calls: {[call]}"


def episode_problems(subject: Subject, data: DataFacts) -> Findings:
    """Call every tool once with made-up arguments; construct each environment and reset it with the first row. Yield an
    error where the run would end, and a notice where the model would read an error.
    """
    experiment, torch = subject.experiment, sys.modules.get("torch")
    if not (experiment.tools or experiment.environments) or (torch is not None and torch.cuda.is_initialized()):
        return
    row = dict(data.sources[0].rows[0]) if data.sources and data.sources[0].rows else {}
    calls = _example_calls(_all_tools(subject))
    limits = {f"tools.{name}": tool.seconds for name, tool in experiment.tools.items()}
    tools = [f"tools.{name}" for name in experiment.tools if name in calls]
    for key in (*tools, *map(environment_key, experiment.environments)):
        if (failure := in_fork(partial(_try_all, experiment, key, calls, row), TRIAL_S, key)) is None:
            continue
        place, got = failure if failure[1] else (key, failure[0])
        effect, is_call, called = place.partition("\n")
        if is_call:
            yield Notice(called, f"a call with made-up arguments failed, and {effect}: {got}")
        elif got.startswith(LATE) and key in limits and (limits[key] or TRIAL_S) >= TRIAL_S:
            yield Notice(key, f"a call with made-up arguments gave {got}, and may take longer in the run")
        else:
            what = "a trial of what the model can call failed"
            yield RewardError(what, where=subject.where(place), got=got, expected="a result, or a text for the model")


def _try(key: str, call: Function, arguments: Mapping[str, object], counts: Counts) -> Tried:
    try:
        call(**arguments)
    except ToolError as error:
        effect = "the model would be told" if counts.failure is None else "with on_error=raise that ends the run"
        return f"{effect}\n{key}", str(error)
    except BaseException as error:
        return key, str(getattr(error, "got", None) or described(error))
    return None


def _try_all(experiment: Experiment, key: str, calls: Mapping[str, JsonTree], row: Mapping[str, object]) -> Tried:
    """Try the tool that `key` names, or construct and reset that environment, and try its tools."""
    interactions, name, made = interactions_of(experiment), key.partition(".")[2], list[Any]()
    assert interactions is not None
    attempt = partial(_try, counts=interactions.counts)
    if key.startswith("tools."):
        return attempt(key, interactions.tools[name], calls[name])
    make = interactions.environments[name or None]
    given = {column: value for column, value in row.items() if not name or column != ENVIRONMENT_COLUMN}
    if failure := attempt(key, lambda: made.append(make()), {}) or attempt(key, lambda: made[0].reset(**given), {}):
        return failure
    told = (attempt(f"{key}: {tool}", getattr(made[0], tool), calls[tool]) for tool in tools_of(type(made[0])))
    return next(filter(None, told), None)
