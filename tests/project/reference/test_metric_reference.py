"""What is known of metrics: the tables of the document, and in them all that are logged."""

from __future__ import annotations

import pytest

from rlhf_cli.errors import ConfigError
from rlhf_cli.project.reference.key_reference import all_metrics, metrics_about
from rlhf_cli.tables.metrics import OF_A_CRITIC, OF_A_REWARD

NAMES = [one.name for one in all_metrics()]


def test_every_metric_of_ours_is_in_the_document() -> None:
    """Held against the list that is checked against runs; a family in braces or with NAME stands for its members."""
    assert [name for name in OF_A_REWARD if f"rewards/NAME/{name}" not in NAMES] == []
    assert [name for name in OF_A_CRITIC if name not in NAMES] == []


def test_a_short_name_is_the_one_before_with_another_end() -> None:
    (std,) = [one for one in all_metrics() if one.name == "rewards/NAME/std"]
    assert std.text.startswith("raw scores")


def test_words_find_metrics_names_first() -> None:
    found = metrics_about(["zero"])
    assert found[0].name == "frac_reward_zero_std"
    with pytest.raises(ConfigError) as error:
        metrics_about(["frac_reward_zero_sdt"])
    assert error.value.hint == "rlhf list metrics frac_reward_zero_std"
