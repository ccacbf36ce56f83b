"""The command of a run's vLLM server, and what is refused of a server before a run."""

from __future__ import annotations

import importlib.metadata
import json
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rlhf_cli.plan import launch_plan
from rlhf_cli.plan.checks import machine_checks
from rlhf_cli.plan.launch_plan import ServerPlan, installed_vllm, plan_server, port_problem
from rlhf_cli.plan.prepare import prepare
from rlhf_cli.plan.rank_group import why_not_reached
from tests.support.planning import subject_of

MODEL = ("model=local", "model.path=org/model")
SERVER = (*MODEL, "launch.rollout=vllm_server")
OWN = (*SERVER, "launch.rollout_gpus=1")


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> Callable[[str | None], None]:
    """`installed("0.29.1")`: the version of vLLM; None for none."""
    real = importlib.metadata.version

    def version(named: str | None) -> None:
        def of(package: str) -> str:
            if package == "vllm" and named is None:
                raise importlib.metadata.PackageNotFoundError
            return str(named) if package == "vllm" else real(package)

        monkeypatch.setattr(importlib.metadata, "version", of)

    version("0.29.1")
    return version


def server(*words: str) -> ServerPlan:
    return plan_server(prepare(["exp=quickstart", *words]).experiment, Path("/runs/a"), ("3", "5"))


def test_the_command_is_that_of_trl(installed: Callable[[str | None], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """TRL's own `build_command` (trl vllm-serve) is the yardstick: what it imposes, and what names model, GPUs and
    port, stands in ours; in vLLM 0.30 also the scale-out endpoints.
    """
    from trl.scripts import vllm_serve

    for version, has_scale_out in (("0.29.9", False), ("0.30.0", True), (None, True)):
        installed(version)
        monkeypatch.setattr(vllm_serve, "is_vllm_available", lambda min_version, has=has_scale_out: has)
        asked = vllm_serve.ScriptArguments(
            model="org/model", host="127.0.0.1", port=8123, tensor_parallel_size=2, gpu_memory_utilization=0.3
        )
        theirs = vllm_serve.build_command(asked)
        ours = list(server(*OWN, "trainer.args.vllm_server_port=8123").argv)
        assert ours[: ours.index("org/model") + 1] == theirs[: theirs.index("org/model") + 1]
        imposed = theirs[theirs.index("--uvicorn-log-level") + 2 :]
        assert ours[-len(imposed) :] == imposed
        for option in ("--host", "--port", "--tensor-parallel-size"):
            assert ours[ours.index(option) + 1] == theirs[theirs.index(option) + 1]


def test_all_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_plan, "compute_capabilities", lambda: (8.0,))
    given = "enforce_eager: true, async_scheduling: false, max_num_seqs: 32, seed: null, middleware: [a, b]"
    made = server(
        *(*OWN, "model.revision=v2", "model.tokenizer=org/tokens", "model.trust_remote_code=true"),
        *("trainer.args.vllm_max_model_length=99", "trainer.args.vllm_gpu_memory_utilization=0.4"),
        *("trainer.args.vllm_model_impl=transformers", "trainer.args.vllm_group_port=92"),
        f"launch.vllm.args={{{given}, compilation_config: {{mode: 0}}}}",
    )
    ours = (
        "-m vllm.entrypoints.cli.main serve org/model --host 127.0.0.1 --port 0 --tensor-parallel-size 2 --revision v2"
        " --tokenizer org/tokens --max-model-len 99 --gpu-memory-utilization 0.4 --model-impl transformers"
        " --dtype bfloat16 --trust-remote-code --enforce-eager --no-async-scheduling --max-num-seqs 32"
        " --middleware a b --compilation-config {'mode':0} --weight-transfer-config {'backend':'nccl'}"
        " --logprobs-mode processed_logprobs --max-logprobs -1"
    )
    argv = (
        sys.executable,
        *(word.replace("'", '"').replace(":", ": ") if "{" in word else word for word in ours.split()),
    )
    env = {"CUDA_VISIBLE_DEVICES": "3,5", "VLLM_SERVER_DEV_MODE": "1"}
    assert made == ServerPlan(argv, env, ("3", "5"), 0, 92, Path("/runs/a/vllm-server.log"))
    assert "MODEL" in server("launch.rollout=vllm_server", "launch.rollout_gpus=1").argv  # it is refused elsewhere
    assert "--trust-remote-code" not in server(*OWN).argv


@pytest.mark.parametrize(
    ("words", "capabilities", "dtype"),
    [
        (["launch.precision=float32"], (9.0,), "auto"),  # on the hub, and not in its cache
        (["launch.precision=float32", "model.path=there"], (9.0,), "auto"),
        (["launch.precision=float32", "model.path=float16"], (9.0,), "float16"),
        (["launch.precision=float32", "model.path=bfloat16"], (9.0,), "bfloat16"),
        (["launch.precision=float32", "model.path=images"], (9.0,), "bfloat16"),
        (["launch.precision=float32", "model.path=none"], (9.0,), "float32"),
        (["launch.precision=float32", "model.path=org/cached"], (9.0,), "float16"),
        (["launch.precision=float32", "model.dtype=bfloat16"], (9.0,), "bfloat16"),
        (["launch.precision=fp16"], (9.0,), "float16"),
        (["launch.precision=bf16", "model.dtype=float32"], (9.0,), "bfloat16"),
        ([], (8.0,), "bfloat16"),
        (["model.path=float16"], (9.0, 7.5), "float16"),  # a T4, which emulates bf16: precision is float32
        (["model.path=float16"], (), "float16"),
    ],
)
def test_it_computes_in_the_type_of_the_run(
    monkeypatch: pytest.MonkeyPatch, place: Path, words: list[str], capabilities: tuple[float, ...], dtype: str
) -> None:
    stored: dict[str, object] = {"float16": {"dtype": "float16"}, "bfloat16": {"torch_dtype": "bfloat16"}, "none": {}}
    stored["images"] = {"text_config": {"dtype": "bfloat16"}}
    for name, config in stored.items():
        (place / name).mkdir()
        (place / name / "config.json").write_text(json.dumps(config))
    (place / "there").mkdir()
    cached = {"org/cached": place / "float16"}
    monkeypatch.setattr(launch_plan, "cached_model", lambda name, revision: cached.get(name))
    monkeypatch.setattr(launch_plan, "compute_capabilities", lambda: capabilities)
    asks = any(word.startswith("launch.precision") for word in words)
    for others, expected in ((Path("/nowhere"), dtype), (Path("/"), dtype if asks else "bfloat16")):
        monkeypatch.setattr(launch_plan, "OTHER_GPUS", others)
        argv = server(*OWN, *words).argv
        assert argv[argv.index("--dtype") + 1] == expected


Facts = tuple[str, str, object, str]


def problems(*words: str) -> list[Facts]:
    """Class, place, what was given, and what to do, of each error."""
    found = [*machine_checks.vllm_problems(subject_of("exp=quickstart", *words))]
    assert all(error.expected for error in found)
    return [(type(error).__name__, str(error.where), error.got, str(error.hint or error.advice)) for error in found]


def typed(key: str) -> str:
    return f"{key} (command line)"


@pytest.mark.parametrize(
    ("version", "number"),
    [("0.27.9", (0, 27)), ("0.28.0", (0, 28)), ("0.30.1+cu130", (0, 30)), ("0.31.0", (0, 31)), ("dev", (0, 0))],
)
def test_versions(installed: Callable[[str | None], None], version: str, number: tuple[int, int]) -> None:
    install = "pip install 'vllm>=0.28,<0.31'"
    installed(version)
    assert installed_vllm() == number
    fits = number in ((0, 28), (0, 30))
    assert problems(*OWN) == ([] if fits else [("ConfigError", typed("launch.rollout"), f"vllm {version}", install)])
    installed(None)
    wanted = ("ConfigError", typed("launch.rollout"), "launch.rollout=vllm_server", f"{install}, or launch.rollout=hf")
    assert problems(*OWN) == [wanted]


def test_models_that_are_not_served(place: Path) -> None:
    hint = "model.path=FOLDER, or launch.rollout=hf"
    ((name, where, got, to_do),) = problems("launch.rollout=vllm")
    assert (name, where.partition(" ")[0], got, to_do) == ("ModelError", "model.build", "model.build", hint)
    (place / "adapter").mkdir()
    (place / "adapter" / "adapter_config.json").write_text("{}")
    adapter = (*SERVER[::2], "model.path=adapter")
    assert problems(*adapter, "launch.rollout_gpus=1") == [("ModelError", typed("model.path"), "adapter", hint)]
    assert problems("model=local", "model.path=adapter", "launch.rollout=vllm") == []


def test_a_port_that_is_taken() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert port_problem(port := taken.getsockname()[1]) == "Address already in use"
    assert port_problem(99999) == "a port is a number up to 65535"
    assert port_problem(port) is port_problem(0) is None


@pytest.mark.parametrize(
    ("name", "value", "host", "port"),
    [
        ("host", "gpu9", "gpu9", 8000),
        ("host", "gpu9 trainer.args.vllm_server_port=81", "gpu9", 81),
        ("base_url", "gpu9:8001", "gpu9", 8001),
        ("base_url", "http://gpu9/v1", "gpu9", 80),
        ("base_url", "https://gpu9/v1", "gpu9", 443),
    ],
)
def test_a_server_elsewhere(monkeypatch: pytest.MonkeyPatch, name: str, value: str, host: str, port: int) -> None:
    key = f"trainer.args.vllm_server_{name}"
    words = (*SERVER, *f"{key}={value}".split())
    unreached: dict[tuple[str, int], str] = {}
    monkeypatch.setattr(machine_checks, "why_not_reached", lambda *address: unreached.get(address))
    assert problems(*words) == []
    unreached[host, port] = "Connection refused"
    ((kind, where, got, advice),) = problems(*words)
    assert (kind, where, got) == ("ConfigError", typed(key), f"{host}:{port}: Connection refused")
    assert "launch.rollout_gpus=1" in advice
    assert [found[1].partition(" ")[0] for found in problems(*words[2:])] == ["model.build"]  # no server is asked


@pytest.mark.parametrize("url", ["gpu9:abc", "http://127.0.0.1:99999", "'http://[::1'", "'http://gpu..9'"])
def test_an_address_that_is_none(url: str) -> None:
    key = "trainer.args.vllm_server_base_url"
    ((kind, where, _, _),) = problems(*SERVER, f"{key}={url}")
    assert (kind, where) == ("ConfigError", typed(key))
    assert all(why_not_reached(*address) for address in (("127.0.0.1", 99999), ("gpu..9", 80)))
