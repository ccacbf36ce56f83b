"""`primary:` is written out into gates when an experiment is judged, and is gone afterwards."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.errors import ConfigError
from rlhf_cli.jobs.prepare import prepare
from rlhf_cli.launch.freeze import create_run

pytestmark = pytest.mark.usefixtures("place")
Judged = Callable[..., Experiment]
Refused = Callable[..., ConfigError]

QUICK = "exp=quickstart"  # rewards: correct, format, brevity
PRIMARY = "primary={by: correct, at_least: 1.0}"


def gates(experiment: Experiment) -> dict[str, list[str]]:
    """Name -> what it waits for, in order."""
    return {name: [gate.by for gate in reward.gates] for name, reward in experiment.rewards.items()}


def test_every_other_reward_waits_for_it(judged: Judged) -> None:
    experiment = judged(QUICK, PRIMARY)
    assert gates(experiment) == {"correct": [], "format": ["correct"], "brevity": ["correct"]}
    assert experiment.primary is None
    (gate,) = experiment.rewards["format"].gates
    assert (gate.at_least, gate.otherwise) == (1.0, "zero")


@pytest.mark.parametrize("otherwise", ["zero", "exclude", -1.0])
def test_what_a_closed_one_leaves_goes_with_it(judged: Judged, otherwise: str | float) -> None:
    experiment = judged(QUICK, f"primary={{by: correct, between: [0.5, 1.0], otherwise: {otherwise}}}")
    (gate,) = experiment.rewards["brevity"].gates
    assert (gate.between, gate.otherwise) == ((0.5, 1.0), otherwise)


def test_gates_of_ones_own_stay_and_come_first(judged: Judged) -> None:
    experiment = judged(QUICK, PRIMARY, "rewards.brevity.gate={by: format, at_least: 0.5}")
    assert gates(experiment) == {"correct": [], "format": ["correct"], "brevity": ["format", "correct"]}
    several = judged(QUICK, PRIMARY, "rewards.brevity.gate=[{by: format, at_least: 1}, {by: correct, equals: 2}]")
    assert gates(several)["brevity"] == ["format", "correct", "correct"]


def test_what_the_primary_waits_for_is_not_gated(judged: Judged) -> None:
    """correct waits for format: a gate on format would be a circle. Neither is what format waits for, and so on."""
    experiment = judged(QUICK, PRIMARY, "rewards.correct.gate={by: format, at_least: 0.5}")
    assert gates(experiment) == {"correct": ["format"], "format": [], "brevity": ["correct"]}
    chain = judged(
        QUICK,
        PRIMARY,
        "rewards.correct.gate={by: format, at_least: 0.5}",
        "rewards.format.gate={by: brevity, at_most: 9}",
    )
    assert gates(chain) == {"correct": ["format"], "format": ["brevity"], "brevity": []}


def test_the_frozen_file_holds_gates_and_no_primary(place: Path) -> None:
    prepared = prepare([QUICK, PRIMARY], keep_run_names=True)
    composed, experiment = prepared.composed, prepared.experiment
    folder = create_run(experiment, composed, files={})
    frozen = yaml.safe_load(folder.config.read_text(encoding="utf-8"))
    assert frozen["primary"] is None
    written = frozen["rewards"]["format"]["gate"]
    assert [(gate["by"], gate["at_least"], gate["otherwise"]) for gate in written] == [("correct", 1.0, "zero")]
    assert frozen["rewards"]["correct"]["gate"] is None
    assert Experiment.model_validate(frozen).rewards["format"].gates == experiment.rewards["format"].gates


def test_an_unknown_name(refused: Refused) -> None:
    error = refused(QUICK, "primary={by: corect, at_least: 1.0}")
    assert error.what == "a gate reads a reward 'corect' that does not exist"
    assert error.where == "primary.by (command line)"
    assert error.expected == "one of correct, format, brevity"
    assert error.hint == "primary.by=correct"
    assert error.exit_code == 2


@pytest.mark.parametrize(
    ("typed", "what"),
    [
        ("primary={by: correct}", "exactly one of"),
        ("primary={by: correct, at_least: 1, at_most: 2}", "exactly one of"),
        ("primary={by: correct, between: [2, 1]}", "[low, high]"),
        ("primary={by: correct, at_least: 1, otherwise: nothing}", "otherwise"),
        ("primary={at_least: 1}", "primary.by must be given"),
        ("primary={by: correct, atleast: 1}", "unknown key"),
    ],
)
def test_a_gate_that_is_none(typed: str, what: str) -> None:
    with pytest.raises(ConfigError) as caught:
        prepare([QUICK, typed], keep_run_names=True)
    assert what in str(caught.value)
    assert "primary" in str(caught.value)
