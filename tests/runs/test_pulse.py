"""What a rank says of what it is doing, as somebody else reads it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from rlhf_cli.runs import pulse as module
from rlhf_cli.runs.pulse import EVALUATION, GENERATION, LOADING, LOSS, SAVING, TRAINING, Pulse, pulse_files, pulses


@pytest.fixture
def pulse(tmp_path: Path) -> Pulse:
    return Pulse(tmp_path, 3)


def test_it_loads_and_is_not_watched_until_it_trains(pulse: Pulse, tmp_path: Path) -> None:
    beat = pulses(tmp_path)[3]
    assert (beat.phase, beat.is_watched, beat.seams) == (LOADING, False, 0)
    pulse.enter(TRAINING)
    beat = pulses(tmp_path)[3]
    assert (beat.phase, beat.is_watched, beat.seams) == (TRAINING, True, 1)


def test_what_is_within_is_said_and_both_ends_are_seams(pulse: Pulse, tmp_path: Path) -> None:
    pulse.enter(TRAINING)
    with pulse.during(LOSS), pulse.during(GENERATION):
        beat = pulses(tmp_path)[3]
        assert (beat.phase, beat.seams) == (GENERATION, 3)
    beat = pulses(tmp_path)[3]
    assert (beat.phase, beat.seams) == (TRAINING, 5)


def test_of_an_evaluation_that_is_said(pulse: Pulse) -> None:
    with pulse.during(EVALUATION), pulse.during(GENERATION):
        assert pulse.read().phase == "generation of an evaluation"


def test_what_is_not_watched_stays_so_within(pulse: Pulse) -> None:
    pulse.enter(TRAINING)
    with pulse.during(SAVING, is_watched=False), pulse.during(LOSS):
        assert not pulse.read().is_watched
    assert pulse.read().is_watched


def test_an_error_leaves_what_was_being_done(pulse: Pulse) -> None:
    pulse.enter(TRAINING)
    with pytest.raises(ValueError, match="no"), pulse.during(LOSS), pulse.during(GENERATION):
        raise ValueError("no")
    assert pulse.phases == (TRAINING, LOSS, GENERATION)


def test_a_beat_is_a_sign_of_life_and_to_say_that_one_waits_is_none(pulse: Pulse) -> None:
    pulse.enter(TRAINING)
    first = pulse.read()
    time.sleep(0.01)
    pulse.say_waits()
    waiting = pulse.read()
    assert (waiting.at, waiting.waits) == (first.at, True)
    pulse.beat()
    assert pulse.read().at > first.at
    assert pulse.read().age_s < waiting.age_s
    pulse.enter(TRAINING)
    assert not pulse.read().waits


def test_those_of_another_boot_are_not_of_this_machine(
    pulse: Pulse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "boot_id", lambda: "another")
    Pulse(tmp_path, 4)
    assert set(pulses(tmp_path)) == {4}


def test_who_ends_as_he_wants_to_leaves_nothing(pulse: Pulse, tmp_path: Path) -> None:
    pulse.close()
    pulse.close()
    pulse.beat()
    pulse.enter(TRAINING)  # a thread that is left behind
    assert pulse_files(tmp_path) == []
    assert pulses(tmp_path) == {}
