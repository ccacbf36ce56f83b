"""What a finding says to type is accepted by `rlhf check`: of every fault that can be planted, with its experiment."""

from __future__ import annotations

import functools
import re
import shlex

import pytest

from rlhf_cli.analysis.diagnosis.finding import Finding, RunSetup
from rlhf_cli.analysis.diagnosis.logged import Log
from rlhf_cli.analysis.diagnosis.run_diagnosis import look
from rlhf_cli.errors import UserError
from rlhf_cli.plan.preflight import preflight
from rlhf_cli.plan.prepare import prepare
from rlhf_cli.tables.metrics import FINDING_KINDS
from tests.analysis.diagnosis.planted_faults import FAULTS
from tests.analysis.diagnosis.simulated_logs import simulate

_MORE = {
    **{name: f"reward@rewards.{name}=brevity" for name in ("twin", "longer", "judge")},
    "gold": "reward@rewards.gold=exact_match",
    "format": "reward@rewards.format=digits_only",
}
"""What has to be typed for a reward of a simulated run to be one of the experiment's."""


@functools.cache
def findings() -> dict[str, tuple[bool, list[str], list[Finding]]]:
    """Fault -> whether it is PPO's, the rewards it has beside the experiment's, what is found."""
    of_fault = {}
    for name, (kind, world) in FAULTS.items():
        events, config = simulate(world, seed=0)
        seen = look(Log.of(events, world.events), RunSetup.of(config), [kind]).findings
        own = {"correct", "brevity"} | (set() if world.is_ppo else {"format"})
        of_fault[name] = (world.is_ppo, [reward for reward in world.weights if reward not in own], list(seen))
    return of_fault


def words_to_type() -> dict[tuple[str, ...], str]:
    """The words that belong together -> the fault they are said of; of each key one value."""
    said: dict[tuple[str, ...], str] = {}
    keys: set[tuple[bool, str]] = set()
    for name, (is_ppo, more, found) in findings().items():
        base = ("+exp=toy_ppo" if is_ppo else "+exp=quickstart", *(_MORE[reward] for reward in more))
        for change in (change for finding in found for change in finding.changes):
            key = (is_ppo, re.sub(r"^rewards\.\w+", "rewards.*", change.words.partition("=")[0]))
            if not change.words.startswith("rlhf ") and key not in keys:
                keys.add(key)
                said.setdefault((*base, *shlex.split(change.words)), name)
    return said


def test_every_change_is_accepted() -> None:
    said = words_to_type()
    assert len(said) > 20
    for words, fault in said.items():
        try:
            prepared = prepare(list(words))
            preflight(prepared.experiment, prepared.composed)
        except UserError as error:
            pytest.fail(f"{fault}: {' '.join(words)}: {error}")


def test_every_kind_is_planted_and_says_what_to_type() -> None:
    found = [finding for _, _, of_fault in findings().values() for finding in of_fault]
    assert {finding.kind for finding in found} == set(FINDING_KINDS)
    assert all(finding.changes for finding in found)


def test_negative_control_a_key_that_there_is_not_is_refused() -> None:
    with pytest.raises(UserError):
        prepare(["+exp=quickstart", "rewards.twin.weight=0"])
