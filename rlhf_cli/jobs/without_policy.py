"""Accept an experiment without a model or data, for commands that need neither."""

from __future__ import annotations

from rlhf_cli.config.origins import Origins
from rlhf_cli.errors import RunError
from rlhf_cli.evaluate.policy_tokenizer import NOT_GIVEN
from rlhf_cli.jobs.run_names import find_run, is_run_name
from rlhf_cli.json_values import JsonTree, section

_MISSING = "???"


def without_policy(tree: JsonTree, origins: Origins) -> None:
    """Fill in a `model.path` that is not given, or that names a run which does not exist yet.

    Scoring rewards needs neither a policy nor a critic.
    """
    model, critic = section(tree, "model"), section(tree, "critic")
    if model.get("path") == _MISSING or _is_not_made(model.get("path"), tree):
        model["path"] = NOT_GIVEN
    if _is_not_made(critic.get("init"), tree):
        critic["init"] = "policy"


def without_policy_and_data(tree: JsonTree, origins: Origins) -> None:
    """Do the same, and fill in a `data.path` that is not given: the rows come from a file of completions."""
    without_policy(tree, origins)
    data = section(tree, "data")
    if data.get("path") == _MISSING:
        data["path"] = NOT_GIVEN


def _is_not_made(named: object, tree: JsonTree) -> bool:
    if not isinstance(named, str) or not is_run_name(named):
        return False
    try:
        find_run(named, str(section(tree, "run").get("root")), where="model.path")
    except RunError:
        return True
    return False
