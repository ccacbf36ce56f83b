"""Reports before the start that this machine lacks a GPU, a package, a server, a sandbox or fast bf16.

Also count processes and devices, and read their memory.
"""

from __future__ import annotations

import importlib.metadata
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from rlhf_cli.config import accelerate_file
from rlhf_cli.config.schema.run_sections import Launch
from rlhf_cli.errors import RewardError
from rlhf_cli.plan import devices, launch_plan
from rlhf_cli.plan.checks.facts import Findings, Report, Subject
from rlhf_cli.plan.checks.machine_checks import folder_problems, gpu_problems, launch_problems
from rlhf_cli.plan.devices import Device, planned_device
from rlhf_cli.services.sandbox import running
from tests.support.machines import HaveGpus, have_gpus
from tests.support.planning import Refused, Write, planned, subject_of, table, told

QUICK = "exp=quickstart"
SERVER = ("model=local", "model.path=org/model", "launch.rollout=vllm_server")


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HaveGpus:
    monkeypatch.setattr(importlib.metadata, "version", _version("vllm", "0.29.1"))
    return have_gpus(tmp_path.parent, monkeypatch)


def _version(package: str, version: str):
    real = importlib.metadata.version
    return lambda name: version if name == package else real(name)


# the GPUs that there are; what is typed; the key, what it got and expected; what to type
GPUS = """
2 | launch.processes=4 | launch.processes | 4 to train on | at most 2, THERE | launch.processes=2
2 | launch.processes=2
3 | launch.processes=2 SERVED=2 | launch.ON_gpus | 2 to train on and 2 SERVER | at most 3, THERE | launch.processes=1
2 | launch.processes=1 SERVED=1
1 | launch.processes=1 SERVED=1 | launch.ON_gpus | 1 to train on and 1 SERVER | at most 1, THERE | HF launch.ON_gpus=0
0 | launch.device=cuda | launch.device | launch.device=cuda, but 0 NAMED | None | launch=cpu
0 | RM | rewards.rm.device | rewards.rm.device=cuda:1, but 0 NAMED | None | rewards.rm.device=cpu
1 | RM | rewards.rm.device | rewards.rm.device=cuda:1, but 1 NAMED | None | rewards.rm.device=cpu
2 | RM
2 | launch.device=cpu launch.processes=4
2 | launch.device=cpu launch.strategy=fsdp2 | launch.strategy | PLAIN | None | launch.strategy=ddp
0 | launch.device=cpu model=local model.path=org/m launch.rollout=vllm | launch.rollout | NCCL | None | HF
"""
_SHORT = {
    **{"THERE": "by nvidia-smi or CUDA_VISIBLE_DEVICES", "ON_": "rollout_", "SERVER": "for the vLLM server"},
    **{"HF": "launch.rollout=hf", "SERVED": f"{' '.join(SERVER)} launch.rollout_gpus"},
    **{"PLAIN": "a CPU, on which accelerate runs plain DDP"},
    **{"NAMED": "GPUs by nvidia-smi or CUDA_VISIBLE_DEVICES", "RM": "rewards.rm={model:a/b,device:cuda:1}"},
    **{"NCCL": "a CPU, on which TRL sends vLLM no weights"},
}


@pytest.mark.fault(45)
@pytest.mark.parametrize("cells", table(GPUS, **_SHORT), ids=lambda cells: f"{cells[0]}, {cells[1]}")
def test_gpus_that_a_machine_does_not_have(gpus: HaveGpus, cells: list[str]) -> None:
    there, words, *error = cells
    gpus(int(there))
    found = told(gpu_problems(subject_of(QUICK, *words.split())))
    assert [[str(part) for part in parts] for parts in found] == ([error] if error else [])


@pytest.mark.parametrize("device", ["gpu", "cuda:x", "cuda:0,1"])
def test_a_device_of_a_reward_model_that_torch_does_not_know(refused: Refused, device: str) -> None:
    error = refused(QUICK, f"rewards.rm={{model: a/b, device: '{device}'}}")
    assert str(error.where).startswith("rewards.rm")
    assert "`device`" in str(error.expected)


@pytest.mark.parametrize(
    ("name", "value", "is_refused"),
    [
        *(
            ("ACCELERATE_USE_FSDP", value, value in ("true", "1", "float32"))
            for value in ("true", "1", "0", "FALSE", "")
        ),
        *(("ACCELERATE_MIXED_PRECISION", value, value == "bf16") for value in ("bf16", "No", "fp16")),
        ("ACCELERATE_USE_CPU", "fp16", True),
    ],
)
def test_variables_of_accelerate_s_that_contradict(monkeypatch, name: str, value: str, is_refused: bool) -> None:
    monkeypatch.setenv(name, value)
    found = told(gpu_problems(subject_of(QUICK, "launch=cpu", "launch.precision=fp16")))
    assert found == [("launch", f"{name}={value}", None, f"unset {name}")] * is_refused


def of_folder(subject: Subject) -> Findings:
    return folder_problems(subject, 3)


@pytest.mark.fault(5)
def test_a_folder_that_cannot_be_written_to(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "taken").write_text("a file")
    subject, expected, hint = subject_of(QUICK, "run.root=a/b/c"), "a writable folder", "run.root=SOMEWHERE_ELSE"
    assert told(of_folder(subject)) == []
    on_a_file = subject_of(QUICK, "run.root=taken")
    assert told(of_folder(on_a_file)) == [("run.root", f"{place}/taken is a file", expected, hint)]
    asked: list[object] = []
    monkeypatch.setattr(os, "access", lambda *given: asked.append(given))  # root may write anywhere
    assert told(of_folder(subject)) == [("run.root", f"{place} is not writable", expected, hint)]
    resumed = replace(subject, folder=place)
    ((key, *found, advice),) = told(of_folder(resumed))
    assert (key, *found) == (str(place), f"{place} is not writable", expected)
    assert f"cp -r {place}" in str(advice)
    assert asked == [(place, os.W_OK | os.X_OK)] * 2
    whats = [str(next(iter(of_folder(one)))).partition("\n")[0] for one in (on_a_file, resumed)]
    assert ["created" in what for what in whats] == [True, False]


def test_the_memory_of_the_smallest_gpu_that_is_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    listed, sizes = [f"GPU {number}: a" for number in range(3)], ["0, 81920", "1, 40960", "2, [N/A]"]
    monkeypatch.setattr(devices, "_nvidia_smi", lambda *options: listed if options == ("-L",) else sizes)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert devices.gpu_bytes() == 40960 * 1024 * 1024
    for visible, mebibytes in (("0", 81920), ("0, 1", 40960), ("2", None), ("", None)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert devices.gpu_bytes() == (None if mebibytes is None else mebibytes * 1024 * 1024)


def test_an_accelerate_file_is_read_under_its_key(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(file: Path, *, where: str) -> dict[str, str]:
        return {"file": str(file), "where": where}

    monkeypatch.setattr(accelerate_file, "accelerate_environment", read)
    (place / "a.yaml").write_text("distributed_type: MULTI_GPU\n")
    found = {"file": f"{place}/a.yaml", "where": "launch.accelerate_config (command line)"}
    for words, variables in (((), {}), (("launch.accelerate_config=a.yaml", "launch.device=cuda"), found)):
        assert Report().run(launch_problems(subject_of("exp=quickstart", *words)), None) == variables


class TestVllm:
    @pytest.mark.parametrize("rollout", ["vllm", "vllm_server"])
    @pytest.mark.fault(45)
    def test_not_installed(self, gpus: HaveGpus, refused: Refused, monkeypatch, rollout: str) -> None:
        gpus(2)
        monkeypatch.setattr(launch_plan, "installed_vllm", lambda: None)
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
            without.setattr(launch_plan, "installed_vllm", lambda: None)
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
        (line,) = planned(*words, "trainer.args.generation_kwargs.top_p=0.9").notices
        assert line.text.startswith("top_p=0.9: ")
        off = "trainer.args.vllm_importance_sampling_correction=false"
        assert planned(*words, "trainer.args.top_p=0.9", off).notices == ()
        assert planned(QUICK, "trainer.args.top_p=0.9").notices == ()


def test_several_machines_give_a_notice_about_the_network() -> None:
    words = ("launch=cpu", "trainer.args.per_device_train_batch_size=32")
    (line,) = planned(QUICK, *words, "launch.nodes=2").notices
    assert line.subject == "launch"
    assert planned(QUICK, *words).notices == ()


class TestSandbox:
    WORDS = ("exp=quickstart", "launch=cpu", "reward@rewards.runs=code_runs")

    @pytest.fixture
    def tried(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """A machine without bubblewrap; what was tried on it."""
        asked: list[str] = []

        def protections(isolation: running.Isolation) -> dict[str, bool]:
            asked.append(isolation)
            if isolation != "auto":
                raise RewardError("does not work here", where="args.isolation", got="EPERM", expected="auto")
            return {}

        monkeypatch.setattr(running, "protections", protections)
        return asked

    def test_what_a_reward_insists_on(self, tried: list[str], refused: Refused) -> None:
        error = refused(*self.WORDS, "rewards.runs.args.isolation=bubblewrap")
        assert (error.where, error.got) == ("rewards.runs.args.isolation (command line)", "EPERM")
        assert tried == ["bubblewrap"]

    def test_the_sandbox_is_not_tried_without_such_a_reward_or_for_another_machine(self, tried: list[str]) -> None:
        planned("exp=quickstart", "launch=cpu")
        planned(self.WORDS[0], "launch=slurm", self.WORDS[2], "rewards.runs.args.isolation=bubblewrap")
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


ON_SLURM = {"gpus_per_node": 4}


@pytest.mark.parametrize(
    ("words", "gpus", "here", "of_the_run", "uses_gpu", "on_cpu"),
    [
        ({}, 0, 1, 1, False, True),
        ({}, 3, 3, 3, True, False),
        ({"nodes": 5}, 2, 2, 10, True, False),
        ({"rollout_gpus": 1}, 4, 3, 3, True, False),
        ({"rollout_gpus": 4}, 4, 1, 1, True, False),
        ({"device": "cpu"}, 3, 1, 1, False, True),
        ({"device": "cuda"}, 0, 1, 1, True, False),
        ({"processes": 4, "nodes": 2}, 0, 4, 8, False, True),
        # the nodes of a Slurm job are other machines
        ({"slurm": ON_SLURM, "nodes": 2}, 3, 3, 8, True, False),
        ({"slurm": {}, "nodes": 2}, 3, 3, 2, False, False),
        ({"slurm": ON_SLURM, "device": "cpu", "nodes": 2}, 0, 1, 2, False, True),
        ({"slurm": ON_SLURM, "processes": 2, "nodes": 3}, 0, 2, 6, True, False),
    ],
)
def test_processes(words, gpus, here, of_the_run, uses_gpu, on_cpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "visible_gpus", lambda: tuple("01234"[:gpus]))
    monkeypatch.setattr(devices, "OTHER_GPUS", Path("/nowhere"))
    launch = Launch.model_validate(words)
    assert (devices.count_processes(launch), devices.planned_processes(launch)) == (here, of_the_run)
    assert (devices.uses_gpu(launch), devices.runs_on_cpu(launch)) == (uses_gpu, on_cpu)
    monkeypatch.setenv(devices.ON_SLURM_NODE, "1")
    assert devices.runs_on_cpu(launch) is (on_cpu if launch.device != "auto" else not gpus)
    monkeypatch.setattr(devices, "OTHER_GPUS", Path("/"))
    assert devices.runs_on_cpu(launch) is (launch.device == "cpu")


@pytest.mark.parametrize(
    ("words", "processes", "host", "device"),
    [
        ({"device": "cpu", "nodes": 2}, 8, 1000, Device(False, False, 8, 250)),
        ({"device": "cpu", "nodes": 2}, 1, 1000, Device(num_bytes=1000)),
        ({"device": "cpu", "precision": "bf16"}, 1, 9, Device(False, True, 1, 9)),
        ({"device": "cpu"}, 4, 3, Device(processes=4)),
        ({"device": "cuda"}, 2, 1000, Device(True, True, 2, 7000)),
        ({"device": "cuda", "precision": "float32"}, 2, 1000, Device(True, False, 2, 7000)),
        ({"device": "cuda", "slurm": ON_SLURM}, 2, 1000, Device(True, True, 2, None)),
    ],
)
def test_the_device_of_a_process(
    words: dict[str, object], processes: int, host: int, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "host_bytes", lambda: host)
    monkeypatch.setattr(devices, "gpu_bytes", lambda: 7000)
    assert planned_device(Launch.model_validate(words), processes) == device


@pytest.mark.parametrize(
    ("version_2", "version_1", "num_bytes"),
    [(None, None, 40960), ("max\n", "5000", 5000), ("4000\n", "9000", 4000), ("90000", None, 40960)],
)
def test_a_container_may_have_less_memory_than_its_machine(
    version_2: str | None, version_1: str | None, num_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Control groups of both versions."""
    files = {"memory.max": version_2, "memory.limit_in_bytes": version_1}

    def read(file: Path) -> str:
        if (text := files[file.name]) is None:
            raise FileNotFoundError(file)
        return text

    monkeypatch.setattr(Path, "read_text", read)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=40960))
    assert devices.host_bytes() == num_bytes


def test_what_nvidia_smi_says_of_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last GPU of a list that CUDA takes is the one before that which does not exist: CUDA ignores the rest."""
    have_gpus(tmp_path, monkeypatch)(4)
    assert devices.visible_gpus() == ("0", "1", "2", "3")
    for visible, seen in {"3,1": "3 1", "3, 4,1": "3", "GPU-8f,-1,0": "GPU-8f", "": ""}.items():
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert devices.visible_gpus() == tuple(seen.split())
    found = {name: devices.gpu_identity(name) for name in ("3", "4", "GPU-2", "GPU-", "G", "MIG-GPU-1")}
    assert found == {"3": "GPU-3", "4": "4", "GPU-2": "GPU-2", "GPU-": "GPU-0", "G": "G", "MIG-GPU-1": "MIG-GPU-1"}
    monkeypatch.setattr(devices, "_nvidia_smi", lambda *options: ["8.0", " 9.0", "[N/A]", "12.1"])
    assert devices.compute_capabilities() == (8.0, 9.0, 12.1)


def test_a_command_that_fails_or_hangs_answers_nothing(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert devices.answer_of("sh", "-c", "echo out; echo err >&2; exit 3") == "out\n"
    assert devices.answer_of("./no-such-command") == ""
    monkeypatch.setattr(devices, "_PROBE_TIMEOUT_S", 0.1)
    assert devices.answer_of("sh", "-c", "echo early; exec sleep 3") == ""
    assert capfd.readouterr() == ("", "")
