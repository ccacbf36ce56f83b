"""Lets an experiment through the front door that names no model or no data yet, for what needs neither."""

from __future__ import annotations

from rlhf_cli.config.origins import Origins
from rlhf_cli.evaluate.policy_tokenizer import NOT_GIVEN
from rlhf_cli.json_values import JsonTree, section

_MISSING = "???"


def without_policy(tree: JsonTree, origins: Origins) -> None:
    """Put something in the place of a `model.path` that must still be given: rewards are scored without a policy."""
    _stand_in(section(tree, "model"))


def without_policy_and_data(tree: JsonTree, origins: Origins) -> None:
    """Do the same for `data.path`: the rows come from a file of completions."""
    _stand_in(section(tree, "model"))
    _stand_in(section(tree, "data"))


def _stand_in(section: JsonTree) -> None:
    if section.get("path") == _MISSING:
        section["path"] = NOT_GIVEN
