"""Plan the vLLM server of a run: the command, its environment, its GPUs, its address.

The command is the one that `trl vllm-serve` of TRL 1.16 runs (trl/scripts/vllm_serve.py, `build_command`); `trl
vllm-serve` itself is deprecated. Development mode and the NCCL engine allow weight updates. Log-probabilities are those
after temperature and top-k/top-p, for any number of tokens.
"""

from __future__ import annotations

import json
import os
import re
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from rlhf_cli.config.origins import Origins
from rlhf_cli.config.rules.launch_rules import NAMES_A_SERVER
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.errors import ConfigError, ModelError, UserError
from rlhf_cli.models.tokenizer_files import dtype_of, read_json
from rlhf_cli.plan.devices import FIRST_WITH_BF16, GROUP_PORT_VARIABLE, OTHER_GPUS, URL_VARIABLE, compute_capabilities
from rlhf_cli.plan.rank_group import NO_PORT, PORTS, why_not_reached
from rlhf_cli.runs.provenance import version_of
from rlhf_cli.services.hub_lookup import cached_model

LEAST_VLLM, BELOW_VLLM = (0, 28), (0, 31)
"""Bounds of the vLLM versions that fit torch 2.13 and TRL 1.16 and were tested."""

INSTALL_VLLM = "pip install 'vllm>=0.28,<0.31'"
_SCALE_OUT_FROM = (0, 30)
_HOST = "127.0.0.1"
_PORT = 8000


@dataclass(frozen=True)
class ServerPlan:
    """The vLLM server that a run starts itself. `port` and `group_port` (for weight updates) are 0 if they are chosen
    at the start, and `argv` then has `--port 0`. The server writes to `log`.
    """

    argv: tuple[str, ...]
    env: dict[str, str]
    gpus: tuple[str, ...]
    port: int
    group_port: int
    log: Path

    @property
    def url(self) -> str:
        """Return the URL of the server."""
        return f"http://{_HOST}:{self.port}"

    def for_ranks(self) -> dict[str, str]:
        """Return the variables by which the ranks find the server."""
        return {URL_VARIABLE: self.url, GROUP_PORT_VARIABLE: str(self.group_port)}


def plan_server(experiment: Experiment, run: Path, gpus: tuple[str, ...]) -> ServerPlan:
    """Plan the server of the run in folder `run` on `gpus`. A port that `trainer.args` does not name is 0."""
    args, model = experiment.trainer.args, experiment.model
    given, group = args.get("vllm_server_port"), args.get("vllm_group_port")
    port, group_port = (number if isinstance(number, int) else 0 for number in (given, group))
    argv = [
        *(sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", model.path or "MODEL"),
        *("--host", _HOST, "--port", str(port), "--tensor-parallel-size", str(len(gpus))),
    ]
    for option, value in (
        ("--revision", model.revision),
        ("--tokenizer", model.tokenizer),
        ("--max-model-len", args.get("vllm_max_model_length")),
        ("--gpu-memory-utilization", args.get("vllm_gpu_memory_utilization")),
        ("--model-impl", args.get("vllm_model_impl")),
        ("--dtype", _dtype(experiment)),
    ):
        argv += [] if value is None else [option, str(value)]
    argv += ["--trust-remote-code"] if model.trust_remote_code else []
    for name, value in experiment.launch.vllm.args.items():
        argv += _as_option(name, value)
    argv += ["--enable-scale-out"] if (installed_vllm() or BELOW_VLLM) >= _SCALE_OUT_FROM else []
    argv += ["--weight-transfer-config", json.dumps({"backend": "nccl"})]
    argv += ["--logprobs-mode", "processed_logprobs", "--max-logprobs", "-1"]
    env = {"CUDA_VISIBLE_DEVICES": ",".join(gpus), "VLLM_SERVER_DEV_MODE": "1"}
    return ServerPlan(tuple(argv), env, gpus, port, group_port, run / "vllm-server.log")


def _dtype(experiment: Experiment) -> str:
    """Return the type in which the trainer computes: the one of its precision, in float32 the one of its weights.

    vLLM's own choice for a folder in float32 is a 16-bit type.
    """
    precision, model = experiment.launch.precision, experiment.model
    if precision == "auto":  # trl_config.precision_args decides it with torch
        least = min(compute_capabilities(), default=0.0)
        precision = "bf16" if least >= FIRST_WITH_BF16 or OTHER_GPUS.exists() else "float32"
    if precision != "float32":
        return {"bf16": "bfloat16", "fp16": "float16"}[precision]
    if model.dtype != "auto":
        return model.dtype
    place = Path(os.path.expanduser(str(model.path)))
    folder = place if place.is_dir() else cached_model(str(model.path), model.revision)
    if folder is None or not (folder / "config.json").is_file():
        return "auto"  # of a model on the hub it is the stored type, unless that is float32
    return dtype_of(read_json(folder / "config.json")) or "float32"


def _as_option(name: str, value: object) -> list[str]:
    """Return an entry of `launch.vllm.args` as words of the command line; empty for null."""
    option = name.lstrip("-").replace("_", "-")
    if value is None or isinstance(value, bool):
        return [] if value is None else [f"--{option}" if value else f"--no-{option}"]
    if isinstance(value, list):
        return [f"--{option}", *map(str, value)]
    return [f"--{option}", json.dumps(value) if isinstance(value, dict) else str(value)]


def port_problem(port: int) -> str | None:
    """Return why the server cannot listen at a port, or None if it can, or if the port is still to be chosen."""
    if port not in PORTS:
        return NO_PORT
    try:
        if port:
            socket.create_server((_HOST, port)).close()
    except OSError as error:
        return os.strerror(error.errno) if error.errno else str(error)
    return None


def installed_vllm() -> tuple[int, int] | None:
    """Return (major, minor) of the installed vLLM, or None if it is not installed."""
    if (version := version_of("vllm")) is None:
        return None
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def vllm_problems(experiment: Experiment, origins: Origins) -> Iterator[UserError]:
    """Yield an error if vLLM is not installed, its version is not supported, or the model cannot be served."""
    launch, model, args, version = experiment.launch, experiment.model, experiment.trainer.args, installed_vllm()
    where = origins.where("launch.rollout")
    if version is None:
        got, hint = f"launch.rollout={launch.rollout}", f"{INSTALL_VLLM}, or launch.rollout=hf"
        expected = "vLLM 0.28 to 0.30 beside TRL; also with a server, since TRL's client imports it"
        yield ConfigError("vLLM is not installed", where=where, got=got, expected=expected, hint=hint)
    elif not LEAST_VLLM <= version < BELOW_VLLM:
        what, got = "this version of vLLM is not supported", f"vllm {version_of('vllm')}"
        expected = "0.28 to 0.30, for TRL 1.16 and torch 2.13"
        yield ConfigError(what, where=where, got=got, expected=expected, hint=INSTALL_VLLM)
    key, what = "model.build", "vLLM cannot serve an embedded model" if model.build is not None else ""
    if launch.rollout_gpus and Path(os.path.expanduser(str(model.path)), "adapter_config.json").is_file():
        key, what = "model.path", "vllm serve needs a whole model, but this is an adapter"
    if what:
        got, expected = str(model.path or key), "the folder or hub name of a whole model"
        hint = "model.path=FOLDER, or launch.rollout=hf"
        yield ModelError(what, where=origins.where(key), got=got, expected=expected, hint=hint)
    name = next((name for name in NAMES_A_SERVER if args.get(name) is not None), None)
    if launch.rollout != "vllm_server" or launch.rollout_gpus or name is None or model.build is not None:
        return
    host, port = str(args[name]), given if isinstance(given := args.get("vllm_server_port"), int) else _PORT
    try:
        if name == "vllm_server_base_url":
            parts = urlsplit(host if "//" in host else f"//{host}")
            host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        reason = why_not_reached(host, port)
    except ValueError as error:
        reason = str(error)
    if reason is not None:
        what, got = "no vLLM server answers", f"{host}:{port}: {reason}"
        expected = "a running server: docs/how-to/launch.md has the command"
        advice = "remove this argument and set launch.rollout_gpus=1: the run then starts its own server"
        yield ConfigError(what, where=origins.where(f"trainer.args.{name}"), got=got, expected=expected, advice=advice)
