"""Say what to do about a reward function that failed on the first row of the data."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping

from rlhf_cli.data.source import Template

UNSET = "the environment variable {} is not set"
_EACH = "return one entry per completion: [score(text) for text in completions]"
_RETURNED = (
    (r"values for \d+ completions|a list: (?:float|int|bool|str):", _EACH),
    (r"a list: dict: \{'(\w+)'", 'return the list in it: result["{}"]'),
    (r"a list: NoneType", f"it ends without `return`; {_EACH}"),
    (r"a list: \w+", "return list(scores)"),
    (r"row \d+: dict: \{'(\w+)'", 'return [result["{}"] for result in results]'),
    (r"row \d+: -?(?:nan|inf|\d)", "return None instead of NaN or infinity: the row then has no score"),
    (r"a number for row", "return [float(score) for score in scores]"),
    (r"", "return the numbers that are expected"),
)
"""What a function returned -> what to do, with the key of a dictionary."""
_OF_THE_TRIAL = re.compile(r"'(NoneType|int|float|bool|StateOfTrainer)'")
"""Types that a function may have made of the completion of the trial, or that a run replaces."""


def advice_on(name: str, got: str, row: Mapping[str, object], template: Template | None) -> str:
    """Return what to do about a reward that failed with `got` on a row, whose prompt `template` made.

    To leave out the trial is offered only where the run may differ from it.
    """
    if got.startswith(f"reward {name!r} "):
        found, told = next((found, told) for pattern, told in _RETURNED if (found := re.search(pattern, got)))
        return f"it would return the same in a run; {told.format(*found.groups())}"
    if found := re.match(UNSET.format(r"(\w+)"), got):
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
    return f"set rewards.{name}.trial=false if the function works only during the run"
