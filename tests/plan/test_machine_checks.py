"""What this machine cannot do, or only slowly, is told before a run: a sandbox, bf16."""

from __future__ import annotations

import pytest

from rlhf_cli.errors import RewardError
from rlhf_cli.plan import devices
from rlhf_cli.plan.checks import machine_checks
from rlhf_cli.sandbox.running import Isolation
from tests.support.planning import Refused, Write, planned


class TestSandbox:
    WORDS = ("exp=quickstart", "launch=cpu", "reward@rewards.runs=code_runs")

    @pytest.fixture
    def tried(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """A machine without namespaces; what was tried on it."""
        asked: list[str] = []

        def protections(isolation: Isolation) -> dict[str, bool]:
            asked.append(isolation)
            if isolation != "auto":
                raise RewardError("does not work here", where="args.isolation", got="EPERM", expected="auto")
            return {}

        monkeypatch.setattr(machine_checks, "protections", protections)
        return asked

    def test_what_a_reward_insists_on(self, tried: list[str], refused: Refused) -> None:
        error = refused(*self.WORDS, "rewards.runs.args.isolation=namespaces")
        assert (error.where, error.got) == ("rewards.runs.args.isolation (command line)", "EPERM")
        assert tried == ["namespaces"]

    def test_negative_control_the_strongest_that_works(self, tried: list[str]) -> None:
        planned(*self.WORDS)
        assert tried == ["auto"]

    def test_nothing_is_tried_without_such_a_reward_or_for_another_machine(self, tried: list[str]) -> None:
        planned("exp=quickstart", "launch=cpu")
        planned(self.WORDS[0], "launch=slurm", self.WORDS[2], "rewards.runs.args.isolation=namespaces")
        assert tried == []


@pytest.mark.fault(45)
@pytest.mark.parametrize(("capability", "is_told"), [("7.5", True), ("8.0", False), ("9.0", False), ("[N/A]", False)])
def test_bf16_that_is_emulated(write: Write, monkeypatch: pytest.MonkeyPatch, capability: str, is_told: bool) -> None:
    """NVIDIA has bf16 from compute capability 8.0 on (CUDA C programming guide, table of arithmetic instructions)."""
    said = f'case "$1" in -L) echo "GPU 0: a card (UUID: GPU-1)";; *) echo "{capability}";; esac'
    file = write("bin/nvidia-smi", f"#!/bin/sh\n{said}\n")
    file.chmod(0o755)
    monkeypatch.setenv("PATH", str(file.parent), prepend=":")
    monkeypatch.setattr(devices, "may_have_other_gpus", lambda: False)
    notices = planned("exp=quickstart", "launch=auto", "launch.precision=bf16").notices
    told = [notice.text for notice in notices if notice.subject == "precision"]
    assert bool(told) is is_told
    assert all("compute capability 7.5" in text and "launch.precision=fp16" in text for text in told)
    assert not any(notice.subject == "precision" for notice in planned("exp=quickstart", "launch=auto").notices)
