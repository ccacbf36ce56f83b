"""Reports before the start that this machine lacks a GPU, a package, a server or a port."""

from __future__ import annotations

import importlib.metadata
import socket
from pathlib import Path

import pytest

from rlhf_cli.errors import Problems
from rlhf_cli.launch.rollout_server import free_ports
from rlhf_cli.plan import rollout_server_plan
from tests.support.machines import HaveGpus, have_gpus
from tests.support.planning import Refused, planned

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
        assert error.what == "more GPUs are asked for than there are"
        assert (error.where, error.got) == ("launch.processes (command line)", "4 to train on: 4")
        assert error.hint == "launch.processes=2"
        words = ("launch.processes=2", "trainer.args.per_device_train_batch_size=32")
        assert planned(QUICK, *words).processes == 2

    def test_the_server_s_count_too(self, gpus: HaveGpus, refused: Refused) -> None:
        gpus(2)
        words = ("launch.processes=2", "trainer.args.per_device_train_batch_size=32")
        error = refused(QUICK, *SERVER, "launch.rollout_gpus=1", *words)
        assert error.got == "2 to train on and 1 for the vLLM server: 3"
        assert error.hint == "launch.processes=1"
        assert planned(QUICK, *SERVER, "launch.rollout_gpus=1").processes == 1

    def test_a_cpu_has_room_for_any(self) -> None:
        assert planned(QUICK, "launch.processes=4", "trainer.args.per_device_train_batch_size=16").processes == 4

    @pytest.mark.fault(45)
    def test_no_gpu(self, refused: Refused) -> None:
        error = refused(QUICK, "launch.device=cuda")
        assert (error.what, error.hint) == ("there is no CUDA device here", "launch=cpu")

    def test_fsdp_on_a_cpu(self, refused: Refused, gpus: HaveGpus) -> None:
        error = refused(QUICK, "launch=fsdp2")
        assert error.what == "launch.strategy=fsdp2 needs a GPU"
        assert str(error.where).startswith("launch.strategy (")
        gpus(1)
        assert planned(QUICK, "launch=fsdp2").processes == 1

    def test_deepspeed_that_is_not_there(self, refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
        real = importlib.util.find_spec
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "deepspeed" else real(name))
        error = refused(QUICK, "launch=zero2")
        assert error.what == "launch.strategy=zero2 needs deepspeed, which is not installed"
        assert error.hint == "pip install deepspeed, or launch.strategy=ddp"  # the CPU has no fsdp2


class TestVllm:
    @pytest.mark.parametrize("rollout", ["vllm", "vllm_server"])
    @pytest.mark.fault(45)
    def test_not_installed(self, gpus: HaveGpus, refused: Refused, monkeypatch, rollout: str) -> None:
        gpus(2)
        monkeypatch.setattr(rollout_server_plan, "installed_vllm", lambda: None)
        more = ("launch.rollout_gpus=1",) if rollout == "vllm_server" else ("launch.processes=1",)
        error = refused(QUICK, *SERVER[:2], f"launch.rollout={rollout}", *more)
        assert error.what == "vLLM is not installed"
        assert error.hint == "pip install 'vllm>=0.28,<0.31', or launch.rollout=hf"

    @pytest.mark.parametrize(
        ("version", "fits"),
        [
            ("0.26.2", False),
            ("0.27.9", False),
            ("0.28.0", True),
            ("0.30.1+cu130", True),
            ("0.31.0", False),
            ("1.0", False),
        ],
    )
    def test_versions(self, gpus: HaveGpus, refused: Refused, monkeypatch, version: str, fits: bool) -> None:
        gpus(2)
        monkeypatch.setattr(importlib.metadata, "version", _version("vllm", version))
        words = (QUICK, *SERVER, "launch.rollout_gpus=1")
        if fits:
            assert planned(*words).processes == 1
        else:
            error = refused(*words)
            assert (error.what, error.got) == ("this version of vLLM does not fit", f"vllm {version}")

    def test_on_a_cpu(self, refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(importlib.metadata, "version", _version("vllm", "0.29.1"))
        assert refused(QUICK, "launch.rollout=vllm").what == "launch.rollout=vllm needs a GPU"

    def test_an_embedded_model_has_no_server(self, gpus: HaveGpus, refused: Refused) -> None:
        gpus(2)
        error = refused(QUICK, "launch.rollout=vllm_server", "launch.rollout_gpus=1")
        assert error.what == "an embedded model is not made for vLLM"

    def test_nobody_at_the_address(self, gpus: HaveGpus, refused: Refused) -> None:
        gpus(1)
        with socket.socket() as somebody:
            somebody.bind(("127.0.0.1", 0))
            port = somebody.getsockname()[1]
            words = (QUICK, *SERVER, f"trainer.args.vllm_server_base_url=http://127.0.0.1:{port}/v1")
            error = refused(*words)
            assert error.what == "no vLLM server answers"
            assert error.got == f"127.0.0.1:{port}: Connection refused"
            assert str(error.where).startswith("trainer.args.vllm_server_base_url")
            somebody.listen()
            assert planned(*words).processes == 1

    def test_sampling_under_which_the_ratio_is_biased(self, gpus: HaveGpus) -> None:
        gpus(1)
        words = (QUICK, "model=local", "model.path=org/model", "launch.rollout=vllm")
        assert planned(*words, "trainer.args.top_p=1.0", "trainer.args.top_k=0").machine.warnings == ()
        (line,) = planned(*words, "trainer.args.top_p=0.9", "trainer.args.min_p=0.1").machine.warnings
        assert line.startswith("top_p=0.9, min_p=0.1: ")
        assert "trl/issues/6789" in line
        off = "trainer.args.vllm_importance_sampling_correction=false"
        assert planned(*words, "trainer.args.top_p=0.9", off).machine.warnings == ()
        assert planned(QUICK, "trainer.args.top_p=0.9").machine.warnings == ()


class TestVariables:
    @pytest.mark.parametrize(
        ("name", "value", "words"),
        [
            ("ACCELERATE_USE_FSDP", "true", ()),
            ("ACCELERATE_USE_DEEPSPEED", "true", ()),
            ("ACCELERATE_USE_MEGATRON_LM", "1", ()),
            ("ACCELERATE_USE_PARALLELISM_CONFIG", "true", ()),
            ("ACCELERATE_MIXED_PRECISION", "bf16", ("launch=cpu",)),
            ("ACCELERATE_MIXED_PRECISION", "fp16", ()),
        ],
    )
    def test_one_that_contradicts(self, refused: Refused, monkeypatch, name: str, value: str, words) -> None:
        monkeypatch.setenv(name, value)
        error = refused(QUICK, *words)
        assert f"{name} in the environment and launch." in error.what
        assert error.hint == f"unset {name}"

    @pytest.mark.parametrize(
        ("name", "value"),
        [("ACCELERATE_USE_FSDP", "false"), ("ACCELERATE_MIXED_PRECISION", "no"), ("ACCELERATE_DEBUG_MODE", "true")],
    )
    def test_one_that_does_not(self, monkeypatch, name: str, value: str) -> None:
        monkeypatch.setenv(name, value)
        assert planned(QUICK).machine.warnings == ()

    def test_a_default_file_that_is_not_read(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HF_HOME", str(tmp_path.parent / "hub"))
        file = tmp_path.parent / "hub" / "accelerate" / "default_config.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("distributed_type: MULTI_GPU\nnum_processes: 1\nmixed_precision: 'no'\n")
        assert planned(QUICK, "launch=cpu").machine.warnings == ()
        file.write_text(
            "distributed_type: FSDP\nnum_processes: 8\nmixed_precision: bf16\n"
            "fsdp_config: {fsdp_version: 2, fsdp_state_dict_type: FULL_STATE_DICT}\n"
        )
        (line,) = planned(QUICK, "launch=cpu").machine.warnings
        asks = f"{file} is not read, and asks for strategy fsdp2, precision bf16, processes 8; "
        assert line == f"{asks}launch.accelerate_config={file} honours it"
        file.unlink()


def test_several_machines_need_a_network_that_is_trusted() -> None:
    words = ("launch=cpu", "trainer.args.per_device_train_batch_size=32")
    (line,) = planned(QUICK, *words, "launch.nodes=2", f"launch.rdzv=127.0.0.1:{free_ports(1)[0]}").machine.warnings
    assert line.startswith("the 2 machines talk through ports without a password")
    assert planned(QUICK, *words).machine.warnings == ()


def test_all_at_once(gpus: HaveGpus, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(1)
    monkeypatch.setattr(rollout_server_plan, "installed_vllm", lambda: None)
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(Problems) as caught:
        planned(
            QUICK,
            *SERVER,
            "launch.rollout_gpus=1",
            "trainer.args.num_generations=7",
        )
    said = str(caught.value)
    for what in ("no whole groups of 7", "more GPUs are asked for", "vLLM is not installed", "ACCELERATE_USE_FSDP"):
        assert what in said
