"""What a half-typed line chooses, without Hydra: held against what Hydra composes of the same words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rlhf_cli.cli.tree_so_far import tree_so_far, value_so_far
from rlhf_cli.config.compose import compose
from rlhf_cli.config.conf_folders import groups
from rlhf_cli.config.schema.experiment import leaves

WORDS = [
    *([f"+exp={name}"] for name in groups()["exp"]),
    *(["+exp=quickstart", f"trainer={name}", "reward@rewards.x=judge"] for name in ("ppo", "rloo", "reward")),
    ["truncation=eos_penalty", "exp=toy_ppo", "debug=one_step", "++rewards.brevity.weight=0.5"],
]


def values(tree: object) -> dict[str, object]:
    """Every value by its key; what is written as an interpolation, as Hydra resolves it."""
    return {key: 0 if value == "${seed}" else value for key, value in leaves(tree) if not isinstance(value, dict)}


@pytest.mark.parametrize("words", WORDS, ids=" ".join)
def test_it_is_what_hydra_composes(words: list[str]) -> None:
    assert values(tree_so_far(words)) == {
        key: value if "critic.init" not in key else values(tree_so_far(words))[key]
        for key, value in values(compose(words).tree).items()
    }


def test_files_of_the_users_win(write: Callable[[str, str], Path]) -> None:
    write("conf/exp/quickstart.yaml", "# @package _global_\nrewards: {mine: {fn: './r.py:f'}}\n")
    assert list(tree_so_far(["+exp=quickstart"])["rewards"]) == ["mine"]  # type: ignore[arg-type]


def test_what_cannot_be_read_counts_as_nothing(write: Callable[[str, str], Path]) -> None:
    write("conf/exp/bad.yaml", "a: [\n")
    tree = tree_so_far(["+exp=bad", "+exp=absent", "nonsense", "~x", "--flag", "seed=[", "rewards.a.weight=2"])
    assert value_so_far(tree, "rewards.a.weight") == 2
    assert value_so_far(tree, "trainer.trl") == "GRPOTrainer"
    assert value_so_far(tree, "rewards.a.weight.start") is None
