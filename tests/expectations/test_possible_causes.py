"""Whatever is recorded of two runs and differs is named as what may be why; what changes no step is not."""

from __future__ import annotations

import copy

import pytest

from rlhf_cli.expectations.possible_causes import Recorded, causes_of, unrepeatable
from rlhf_cli.json_values import JsonTree, JsonValue

SETTINGS: dict[str, object] = {
    **{"seed": 0, "trainer.args.learning_rate": 1e-3, "rewards.judge.fn": "rlhf_cli.rewards.judge:judge"},
    **{"run.name": "one", "run.root": "runs", "track.mode": "offline", "warn.kl": True, "stop": None, "expect": None},
    "trainer.args.logging_steps": 1,
}
PROVENANCE: JsonTree = {
    "sha256": {"config": "c" * 64, "data": "d" * 64, "rewards.judge": "e" * 64},
    "starting_model": {"path": "/m", "commit": None, "weights_sha256": "f" * 64},
    "versions": {"torch": "2.13.0", "trl": "1.16.0", "wandb": None},
    "rlhf_code": "1" * 64,
    "torch_threads": 1,
    "device": "cpu",
    "attention": "all rows at once",
    "world_size": 1,
    "host": {"name": "here", "processor": "A"},
    "environment": {"JUDGE_URL": "ab12"},
    "command": "rlhf train",
    "git": {"commit": "0", "dirty": False},
}


def test_nothing_differs() -> None:
    assert causes_of(Recorded(SETTINGS, PROVENANCE), Recorded(dict(SETTINGS), copy.deepcopy(PROVENANCE))) == []


@pytest.mark.parametrize(
    ("key", "value", "is_cause"),
    [
        ("seed", 1, True),
        ("trainer.args.learning_rate", 2e-3, True),
        ("trainer.args.logging_steps", 10, True),  # other events are logged
        ("trainer.args.weight_decay", 0.1, True),  # only one of them has it
        ("run.name", "two", False),
        ("track.mode", "none", False),
        ("warn.kl", False, False),
        ("stop", "step >= 3", False),
        ("expect", "x", False),
    ],
)
def test_settings(key: str, value: object, *, is_cause: bool) -> None:
    found = causes_of(Recorded(SETTINGS, PROVENANCE), Recorded({**SETTINGS, key: value}, PROVENANCE))
    assert [(cause.kind, cause.name) for cause in found] == ([("configuration", key)] if is_cause else [])


@pytest.mark.parametrize(
    ("path", "value", "kind"),
    [
        (("sha256", "data"), "0" * 64, "data"),
        (("sha256", "data"), None, "data"),
        (("sha256", "rewards.judge"), "0" * 64, "reward code"),
        (("sha256", "config"), "0" * 64, None),  # its keys are compared
        (("starting_model", "weights_sha256"), "0" * 64, "starting model"),
        (("versions", "torch"), "2.14.0", "version"),
        (("rlhf_code",), "0" * 64, "version"),
        (("torch_threads",), 8, "threads of torch: sums are split among them"),
        (("device",), "cuda:0", "device"),
        (("attention",), "a row each (SDPA): it raises", "how packed rows attend"),
        (("world_size",), 2, "as it came up"),
        (("host", "processor"), "B", "processor"),
        (("host", "name"), "there", None),
        (("environment", "JUDGE_URL"), "cd34", "environment"),
        (("command",), "rlhf reproduce", None),
    ],
)
def test_what_the_provenance_knows(path: tuple[str, ...], value: JsonValue, kind: str | None) -> None:
    other = copy.deepcopy(PROVENANCE)
    place: JsonTree = other
    for part in path[:-1]:
        place = place[part]  # type: ignore[assignment]
    place[path[-1]] = value
    found = causes_of(Recorded(SETTINGS, PROVENANCE), Recorded(SETTINGS, other))
    assert [cause.kind for cause in found] == ([kind] if kind else [])


def test_what_nobody_noted_is_no_difference() -> None:
    """A run of an older version has recorded less."""
    older = {key: value for key, value in PROVENANCE.items() if key not in ("rlhf_code", "torch_threads")}
    older["host"] = {"name": "here"}
    assert causes_of(Recorded(SETTINGS, older), Recorded(SETTINGS, PROVENANCE)) == []


def test_a_run_that_went_on_with_something_else() -> None:
    changed: JsonTree = {"step": 20, "changes": {"trainer.args.learning_rate": "1 -> 2"}, "files": {}}
    unchanged: JsonTree = {"step": 30, "changes": {}, "files": {}}
    before = {**PROVENANCE, "resumed": [changed, unchanged]}
    found = causes_of(Recorded(SETTINGS, before), Recorded(SETTINGS, PROVENANCE))
    assert [(cause.kind, cause.name) for cause in found] == [("resumed", "from step 20")]
    assert "trainer.args.learning_rate" in found[0].before


def test_what_need_not_come_out_the_same() -> None:
    on_gpu = Recorded({**SETTINGS, "trainer.args.use_vllm": True}, {**PROVENANCE, "device": "cuda:0"})
    said = unrepeatable(on_gpu, had_timeouts=True)
    assert [any(word in reason for reason in said) for word in ("GPU", "judge", "vLLM", "timeouts")] == [True] * 4
    plain = Recorded({"rewards.right.fn": "./mine.py:right"}, PROVENANCE)
    assert unrepeatable(plain, had_timeouts=False) == []
