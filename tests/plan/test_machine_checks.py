"""Reports before a run that this machine has no sandbox, or no fast bf16."""

from __future__ import annotations

import pytest

from rlhf_cli.errors import RewardError
from rlhf_cli.plan import devices
from rlhf_cli.plan.checks import machine_checks
from rlhf_cli.services.sandbox.running import Isolation
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


class TestSlurm:
    """What the node of a job has is not this machine's matter: a login node need not have a GPU."""

    NODE = "launch.slurm={gpus_per_node: 4}"

    @pytest.fixture(autouse=True)
    def no_gpus(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(devices, "may_have_other_gpus", lambda: False)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")

    @pytest.mark.parametrize(
        "asks",
        [
            ("launch=slurm", "launch.device=cuda"),
            ("launch=fsdp2", "launch.slurm={}"),
            ("launch=fsdp2", NODE, "launch.device=cuda", "launch.processes=4", "launch.precision=bf16"),
        ],
    )
    def test_it_is_left_to_the_node_and_said(
        self, asks: tuple[str, ...], refused: Refused, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        words = ("exp=quickstart", *asks, "trainer.args.per_device_train_batch_size=16")
        (line,) = (line for line in planned(*words).machine.warnings if "node" in line)
        assert "looked at when the job begins, not here" in line
        assert ("launch.device=cuda" in line) is ("launch.device=cuda" in asks)
        assert ("launch.strategy=fsdp2" in line) is ("launch=fsdp2" in asks)
        assert ("launch.slurm.gpus_per_node=1" in line) is (self.NODE not in asks)
        monkeypatch.setenv(devices.ON_SLURM_NODE, "1")  # in the job it is refused as anywhere
        assert "CUDA device" in refused(*words).what or "needs a GPU" in refused(*words).what

    def test_negative_control_a_cpu_asked_for_is_refused_at_once(self, refused: Refused) -> None:
        error = refused("exp=quickstart", "launch=fsdp2", self.NODE, "launch.device=cpu")
        assert error.what == "launch.strategy=fsdp2 needs a GPU"
        assert not planned("exp=quickstart", "launch=slurm", "launch.device=cpu").machine.warnings
