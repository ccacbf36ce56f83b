"""Every key and metric is explained, and the values of a key are those of the schema."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from rlhf_cli.config.schema.reward_sections import Reward
from rlhf_cli.config.schema.run_sections import Launch
from rlhf_cli.project.function_source import NO_DEFAULT
from rlhf_cli.project.key_reference import all_keys, all_metrics, key_reference, keys_below
from rlhf_cli.tables.metrics import OF_A_CRITIC, OF_A_REWARD


def test_every_key_is_explained() -> None:
    """A section keeps its keys where several of them may stand under names instead (data.eval)."""
    keys = list(all_keys())
    assert len(keys) > 180
    assert {"data.eval.path", "data.eval.NAME.path"} <= {one.key for one in keys}
    assert [one.key for one in keys if not one.text] == []


@pytest.mark.parametrize(
    ("key", "kind", "default", "values"),
    [
        ("rewards.brevity.weight", "number | section", 1.0, ()),
        ("rewards.brevity.normalize", "none | batch | group | running", "none", ("none", "batch", "group", "running")),
        ("rewards.brevity.clip", "[number, number] | null", None, ()),
        ("rewards.brevity.gate.by", "text", NO_DEFAULT, ()),
        ("trainer.class", "text | null", None, ()),
        ("launch.vllm.args", "{name: any}", {}, ()),
    ],
)
def test_a_key(key: str, kind: str, default: object, values: tuple[str, ...]) -> None:
    found = key_reference(key)
    assert found is not None
    assert (found.type, found.default, found.values) == (kind, default, values)


def test_the_values_are_those_that_pydantic_accepts() -> None:
    """Pydantic accepts every listed value and refuses another word."""
    for section, prefix, base in ((Launch, "launch", {}), (Reward, "rewards.NAME", {"model": "m"})):
        for one in keys_below(prefix):
            name = one.key.rpartition(".")[2]
            for value in one.values if name not in ("isolate", "per") else ():  # need a function
                section.model_validate({**base, name: {"true": True, "false": False}.get(value, value)})
            if one.values:
                with pytest.raises(ValidationError):
                    section.model_validate({**base, name: "no such word"})


def test_every_metric_of_ours_is_in_the_document() -> None:
    """The tables of metrics are compared with runs elsewhere; NAME stands for any reward."""
    names = {one.name for one in all_metrics()}
    assert {*(f"rewards/NAME/{name}" for name in OF_A_REWARD), *OF_A_CRITIC} <= names
