"""`warn`: a switch a kind, one word for all, however YAML or a command line says it."""

from __future__ import annotations

import pytest

from rlhf_cli.analysis.diagnosis.run_diagnosis import CHECKS
from rlhf_cli.cli import main
from rlhf_cli.config.schema.run_sections import Warn
from rlhf_cli.plan.prepare import prepare
from rlhf_cli.tables.metrics import FINDING_KINDS


def kinds_off(*words: str) -> set[str]:
    return {kind for kind, is_on in prepare(["+exp=quickstart", *words]).experiment.warn if not is_on}


def test_every_kind_has_a_switch_and_a_function() -> None:
    assert list(Warn.model_fields) == list(FINDING_KINDS) == list(CHECKS)


@pytest.mark.parametrize(
    ("words", "off"),
    [
        ((), set()),
        (("warn.redundant=off",), {"redundant"}),
        (("warn=off",), set(FINDING_KINDS)),
        (("warn={redundant: off}",), {"redundant"}),
    ],
)
def test_switches(words: tuple[str, ...], off: set[str]) -> None:
    assert kinds_off(*words) == off


def test_what_is_no_switch(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "+exp=quickstart", "warn.redundnt=off", "warn.kl=3"]) == 2
    printed = capsys.readouterr().err
    assert "unknown key 'warn.redundnt'" in printed
    assert "try:      warn.redundant" in printed
    assert "expected: on or off" in printed
