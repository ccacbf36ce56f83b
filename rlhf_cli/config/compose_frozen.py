"""Composes a frozen configuration with typed overrides, with the same grammar, origins and messages as `compose`."""

from __future__ import annotations

from pathlib import Path

from hydra.core.config_store import ConfigStore

from rlhf_cli.config.compose import Composed, composing, let_typed_sources_win, origins_of, resolved
from rlhf_cli.config.composing_errors import composed
from rlhf_cli.config.conf_folders import APPENDED_GROUPS, groups
from rlhf_cli.config.environment_references import for_composing, references_of
from rlhf_cli.config.overrides import rewrite
from rlhf_cli.errors import ConfigError
from rlhf_cli.json_values import JsonTree

_CONFIG_NAME = "frozen"


def compose_frozen(config: JsonTree, file: Path | None, typed: list[str]) -> Composed:
    """Compose `config`, which was frozen in `file`, with the user's overrides on top of it.

    A group choice (`truncation=none`) replaces its whole section. Raise ConfigError as `compose` does, and for `exp=`,
    because a run already has its experiment.
    """
    chosen: dict[str, str | None] = {}
    overrides = [_on_frozen(text, chosen) for text in rewrite(typed)]
    kept = {section: for_composing(value, section) for section, value in config.items() if section not in chosen}
    ConfigStore.instance().store(name=_CONFIG_NAME, node=kept)
    with composing() as loader:
        frozen, _ = composed(loader, _CONFIG_NAME, overrides)
        origins = origins_of(loader.merged, overrides, frozen=file)
        tree = resolved(frozen, origins)
        references = references_of(frozen, tree)
    let_typed_sources_win(tree, origins)
    return Composed(tree, chosen, origins, tuple(overrides), frozen=file, references=references)


def _on_frozen(override: str, chosen: dict[str, str | None]) -> str:
    """Return the override in the form Hydra needs without a defaults list, and note each replaced section."""
    group, equals, option = override.lstrip("+").partition("=")
    if group in APPENDED_GROUPS:
        raise ConfigError(
            f"a run has its {group} already",
            where="command line",
            got=override,
            expected="key=value, or a group choice such as truncation=none",
            hint="rlhf train " + override,
        )
    if not equals or override.startswith(("+", "~")) or group not in groups():
        return override
    chosen[group] = option
    return f"+{override}"
