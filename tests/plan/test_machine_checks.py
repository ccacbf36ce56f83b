"""Reports before the start that this machine lacks a GPU, a package, a server, a sandbox or fast bf16."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlhf_cli.config import accelerate_file
from rlhf_cli.errors import RewardError
from rlhf_cli.plan import devices, rollout_server_plan
from rlhf_cli.plan.checks.machine_checks import launch_problems
from rlhf_cli.services.sandbox import running
from tests.support.machines import HaveGpus, have_gpus
from tests.support.planning import Refused, Write, planned

QUICK = "exp=quickstart"
SERVER = ("model=local", "model.path=org/model", "launch.rollout=vllm_server")


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HaveGpus:
    monkeypatch.setattr(importlib.metadata, "version", _version("vllm", "0.29.1"))
    return have_gpus(tmp_path.parent, monkeypatch)


def _version(package: str, version: str):
    real = importlib.metadata.version
    return lambda name: version if name == package else real(name)


class TestGpus:
    def test_more_than_there_are(self, gpus: HaveGpus, refused: Refused) -> None:
        gpus(2)
        error = refused(QUICK, "launch.processes=4", "trainer.args.per_device_train_batch_size=16")
        assert (error.where, error.got) == ("launch.processes (command line)", "4 to train on")
        assert error.hint == "launch.processes=2"
        words = ("launch.processes=2", "trainer.args.per_device_train_batch_size=32")
        assert planned(QUICK, *words).processes == 2

    @pytest.mark.fault(45)
    def test_no_gpu(self, refused: Refused) -> None:
        error = refused(QUICK, "launch.device=cuda")
        assert (error.where, error.hint) == ("launch.device (command line)", "launch=cpu")


def test_the_memory_of_the_smallest_gpu_that_is_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_nvidia_smi", lambda *options: ["0, 81920", "1, 40960", "2, [N/A]"])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert devices.gpu_bytes() == 40960 * 1024 * 1024
    for visible, mebibytes in (("0", 81920), ("0, 1", 40960), ("2", None), ("", None)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert devices.gpu_bytes() == (None if mebibytes is None else mebibytes * 1024 * 1024)


def test_an_accelerate_file_is_read_under_its_key(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(file: Path, *, where: str) -> dict[str, str]:
        return {"file": str(file), "where": where}

    monkeypatch.setattr(accelerate_file, "accelerate_environment", read)
    for name, variables in ((None, {}), ("a.yaml", {"file": f"{place}/a.yaml", "where": "launch.accelerate_config"})):
        launch = SimpleNamespace(rollout="hf", accelerate_config=name)
        subject: Any = SimpleNamespace(experiment=SimpleNamespace(launch=launch), where=str)
        with pytest.raises(StopIteration) as ended:
            next(launch_problems(subject))
        assert ended.value.value == variables


class TestVllm:
    @pytest.mark.parametrize("rollout", ["vllm", "vllm_server"])
    @pytest.mark.fault(45)
    def test_not_installed(self, gpus: HaveGpus, refused: Refused, monkeypatch, rollout: str) -> None:
        gpus(2)
        monkeypatch.setattr(rollout_server_plan, "installed_vllm", lambda: None)
        more = ("launch.rollout_gpus=1",) if rollout == "vllm_server" else ("launch.processes=1",)
        error = refused(QUICK, *SERVER[:2], f"launch.rollout={rollout}", *more)
        assert str(error.where).startswith("launch.rollout")
        assert error.hint == "pip install 'vllm>=0.28,<0.31', or launch.rollout=hf"

    def test_a_model_that_generates_itself_on_a_gpu(self, gpus: HaveGpus, monkeypatch) -> None:
        real = (QUICK, "model=local", "model.path=org/model")
        assert planned(*real).notices == ()  # on a CPU
        gpus(1)
        (line,) = planned(*real).notices
        assert line.subject == "rollout"
        assert line.text.endswith("; launch.rollout=vllm")
        with monkeypatch.context() as without:
            without.setattr(rollout_server_plan, "installed_vllm", lambda: None)
            (line,) = planned(*real).notices
        assert line.text.endswith("pip install 'vllm>=0.28,<0.31', then launch.rollout=vllm")
        assert planned(*real, "launch=cpu").notices == planned(QUICK).notices == ()
        assert planned(*real, "launch.rollout=vllm").notices == ()

    def test_sampling_under_which_the_ratio_is_biased(self, gpus: HaveGpus) -> None:
        gpus(1)
        words = (QUICK, "model=local", "model.path=org/model", "launch.rollout=vllm")
        assert planned(*words, "trainer.args.top_p=1.0", "trainer.args.top_k=0").notices == ()
        (line,) = planned(*words, "trainer.args.top_p=0.9", "trainer.args.min_p=0.1").notices
        assert line.text.startswith("top_p=0.9, min_p=0.1: ")
        assert "trl/issues/6789" in line.text
        off = "trainer.args.vllm_importance_sampling_correction=false"
        assert planned(*words, "trainer.args.top_p=0.9", off).notices == ()
        assert planned(QUICK, "trainer.args.top_p=0.9").notices == ()


class TestVariables:
    @pytest.mark.parametrize(
        ("name", "value", "words"),
        [
            ("ACCELERATE_USE_FSDP", "true", ()),
            ("ACCELERATE_USE_MEGATRON_LM", "1", ()),
            ("ACCELERATE_MIXED_PRECISION", "bf16", ("launch=cpu",)),
            ("ACCELERATE_MIXED_PRECISION", "bf16", ()),
            ("ACCELERATE_USE_CPU", "true", ()),
        ],
    )
    def test_one_that_contradicts(self, refused: Refused, monkeypatch, name: str, value: str, words) -> None:
        monkeypatch.setenv(name, value)
        error = refused(QUICK, *words)
        assert name in error.what
        assert error.hint == f"unset {name}"


def test_several_machines_give_a_notice_about_the_network() -> None:
    words = ("launch=cpu", "trainer.args.per_device_train_batch_size=32")
    (line,) = planned(QUICK, *words, "launch.nodes=2").notices
    assert line.subject == "launch"
    assert planned(QUICK, *words).notices == ()


class TestSandbox:
    WORDS = ("exp=quickstart", "launch=cpu", "reward@rewards.runs=code_runs")

    @pytest.fixture
    def tried(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """A machine without namespaces; what was tried on it."""
        asked: list[str] = []

        def protections(isolation: running.Isolation) -> dict[str, bool]:
            asked.append(isolation)
            if isolation != "auto":
                raise RewardError("does not work here", where="args.isolation", got="EPERM", expected="auto")
            return {}

        monkeypatch.setattr(running, "protections", protections)
        return asked

    def test_what_a_reward_insists_on(self, tried: list[str], refused: Refused) -> None:
        error = refused(*self.WORDS, "rewards.runs.args.isolation=namespaces")
        assert (error.where, error.got) == ("rewards.runs.args.isolation (command line)", "EPERM")
        assert tried == ["namespaces"]

    def test_the_sandbox_is_not_tried_without_such_a_reward_or_for_another_machine(self, tried: list[str]) -> None:
        planned("exp=quickstart", "launch=cpu")
        planned(self.WORDS[0], "launch=slurm", self.WORDS[2], "rewards.runs.args.isolation=namespaces")
        assert tried == []


@pytest.mark.fault(45)
@pytest.mark.parametrize(("capability", "is_noted"), [("7.5", True), ("8.0", False), ("9.0", False), ("[N/A]", False)])
def test_bf16_that_is_emulated(write: Write, monkeypatch: pytest.MonkeyPatch, capability: str, is_noted: bool) -> None:
    """NVIDIA has bf16 from compute capability 8.0 on (CUDA C programming guide, table of arithmetic instructions)."""
    script = f'case "$1" in -L) echo "GPU 0: a card (UUID: GPU-1)";; *) echo "{capability}";; esac'
    file = write("bin/nvidia-smi", f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    monkeypatch.setenv("PATH", str(file.parent), prepend=":")
    monkeypatch.setattr(devices, "OTHER_GPUS", Path("/nowhere"))
    notices = planned("exp=quickstart", "launch=auto", "launch.precision=bf16").notices
    texts = [notice.text for notice in notices if notice.subject == "precision"]
    assert bool(texts) is is_noted
    assert all("compute capability 7.5" in text and "launch.precision=fp16" in text for text in texts)
    assert not any(notice.subject == "precision" for notice in planned("exp=quickstart", "launch=auto").notices)


def test_the_gpus_of_a_slurm_job_are_looked_at_on_its_node(refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    """A login node need not have a GPU."""
    monkeypatch.setattr(devices, "OTHER_GPUS", Path("/nowhere"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    words = (QUICK, "launch=fsdp2", "launch.slurm={gpus_per_node: 4}")
    assert planned(*words, "trainer.args.per_device_train_batch_size=16")
    assert str(refused(*words, "launch.device=cpu").where).startswith("launch.strategy")
    monkeypatch.setenv(devices.ON_SLURM_NODE, "1")  # in the job it is refused as anywhere
    assert str(refused(*words).where).startswith("launch.strategy")
