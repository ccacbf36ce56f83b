"""Checks before the start that this machine has what `launch` needs: GPUs, packages, a vLLM server that answers."""

from __future__ import annotations

import errno
import importlib.util
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from rlhf_cli.config.accelerate_file import KEY as ACCELERATE_KEY
from rlhf_cli.config.origins import Origins
from rlhf_cli.config.rules.launch_rules import NAMES_A_SERVER, rollout_warnings
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.errors import ConfigError, Prose, UserError
from rlhf_cli.plan.accelerate import accelerate_environment, contradicting_variables, variable_warnings
from rlhf_cli.plan.devices import count_processes, is_left_to_a_node, may_have_other_gpus, num_gpus
from rlhf_cli.plan.network import meeting_place, own_host
from rlhf_cli.plan.rollout_server_plan import vllm_problems
from rlhf_cli.tables.strategies import STRATEGIES, StrategyRow

_CONNECT_TIMEOUT_S = 2.0
_VLLM_PORT = 8000


@dataclass(frozen=True)
class Machine:
    """The result of checking this machine: problems that prevent the start, one line per warning, the variables that
    accelerate makes of its file (for the ranks), and that file.
    """

    problems: tuple[UserError, ...]
    warnings: tuple[str, ...]
    accelerate_env: dict[str, str]
    files: dict[str, Path]


def check_machine(experiment: Experiment, origins: Origins) -> Machine:
    """Check `launch` against this machine. With an accelerate file, this takes the seconds that accelerate needs to
    load.
    """
    launch = experiment.launch
    problems: list[UserError] = [
        *_gpu_problems(experiment, origins),
        *_strategy_problems(experiment, STRATEGIES[launch.strategy], origins),
        *vllm_problems(experiment, origins),
        *_unreachable_server(experiment, origins),
        *contradicting_variables(launch, origins),
        *_no_meeting(experiment, origins),
    ]
    files, variables = dict[str, Path](), dict[str, str]()
    if launch.accelerate_config is not None:
        files[ACCELERATE_KEY] = Path(launch.accelerate_config).expanduser().resolve()
        try:
            variables = accelerate_environment(files[ACCELERATE_KEY], where=origins.where(ACCELERATE_KEY))
        except UserError as error:
            problems.append(error)
    warnings = [*rollout_warnings(experiment), *variable_warnings(launch), *_left_to_the_node(experiment)]
    if launch.nodes > 1:
        warnings.append(
            f"the {launch.nodes} machines talk through ports without a password, and exchange pickles: "
            "anyone who reaches these ports can run code there. Use a network of trusted machines only"
        )
    return Machine(tuple(problems), tuple(warnings), variables, files)


def runs_on_cpu(experiment: Experiment) -> bool:
    """Return whether the ranks will train on a CPU, as far as that is known without torch.

    The devices of a Slurm job's node are unknown until the job starts.
    """
    launch = experiment.launch
    if launch.device != "auto" or is_left_to_a_node(launch):
        return launch.device == "cpu"
    return not num_gpus() and not may_have_other_gpus()


def _left_to_the_node(experiment: Experiment) -> Iterator[str]:
    """Warn that a Slurm job needs GPUs and that this machine, having none, could not check them."""
    launch = experiment.launch
    asks = [
        *["launch.device=cuda"] * (launch.device == "cuda"),
        *[f"launch.strategy={launch.strategy}"] * (not STRATEGIES[launch.strategy].runs_on_cpu),
        *[f"launch.rollout={launch.rollout}"] * launch.rollout.startswith("vllm"),
    ]
    if not asks or not is_left_to_a_node(launch) or num_gpus() or launch.slurm is None:
        return
    wants = "launch.slurm.gpus_per_node=1 asks for one, unless the partition or launch.slurm.extra does"
    asked = f"; {wants}" if not launch.slurm.gpus_per_node else ""
    yield f"the job's node needs a GPU for {', '.join(asks)}: it is looked at when the job begins, not here{asked}"


def _gpu_problems(experiment: Experiment, origins: Origins) -> Iterator[UserError]:
    launch, there = experiment.launch, num_gpus()
    if is_left_to_a_node(launch) or (may_have_other_gpus() and not there):
        return
    if launch.device == "cuda" and not there:
        yield ConfigError(
            "there is no CUDA device here",
            where=origins.where("launch.device"),
            got="launch.device=cuda, and neither nvidia-smi nor CUDA_VISIBLE_DEVICES names a GPU",
            expected="a GPU, or the CPU",
            hint="launch=cpu",
        )
        return
    training, serving = count_processes(launch.processes, launch.device, rollout_gpus=launch.rollout_gpus), ""
    training = 0 if runs_on_cpu(experiment) else training
    if launch.rollout_gpus:
        serving = f"{launch.rollout_gpus} for the vLLM server"
    if training + launch.rollout_gpus <= there:
        return
    left = there - launch.rollout_gpus
    fewer = f"launch.processes={left}"
    if launch.accelerate_config is not None:
        fewer = Prose(f"num_processes: {left} in {launch.accelerate_config}")
    wants = " and ".join(filter(None, (f"{training} to train on" if training else "", serving)))
    yield ConfigError(
        "more GPUs are asked for than there are",
        where=origins.where("launch.rollout_gpus" if launch.rollout_gpus else "launch.processes"),
        got=f"{wants}: {training + launch.rollout_gpus}",
        expected=f"at most {there}, which nvidia-smi or CUDA_VISIBLE_DEVICES names",
        hint=fewer if left > 0 else "launch.rollout=hf launch.rollout_gpus=0",
    )


def _strategy_problems(experiment: Experiment, row: StrategyRow, origins: Origins) -> Iterator[UserError]:
    where = origins.where("launch.strategy")
    if not row.runs_on_cpu and runs_on_cpu(experiment):
        yield ConfigError(
            f"launch.strategy={row.name} needs a GPU",
            where=where,
            got="a CPU, on which accelerate runs plain DDP in its place without a word",
            expected="a GPU, or a strategy that a CPU has",
            hint="launch.strategy=ddp",
        )
    if row.package is not None and importlib.util.find_spec(row.package) is None:
        yield ConfigError(
            f"launch.strategy={row.name} needs {row.package}, which is not installed",
            where=where,
            got=row.name,
            hint=f"pip install {row.package}, or launch.strategy={'ddp' if runs_on_cpu(experiment) else 'fsdp2'}",
        )
    if experiment.launch.rollout.startswith("vllm") and runs_on_cpu(experiment):
        yield ConfigError(
            f"launch.rollout={experiment.launch.rollout} needs a GPU",
            where=origins.where("launch.rollout"),
            got="a CPU, from which TRL cannot send new weights to vLLM (NCCL)",
            expected="a GPU, or the model itself as it generates",
            hint="launch.rollout=hf",
        )


def _unreachable_server(experiment: Experiment, origins: Origins) -> Iterator[UserError]:
    launch, args = experiment.launch, experiment.trainer.args
    if launch.rollout != "vllm_server" or launch.rollout_gpus:
        return
    key = next((f"trainer.args.{name}" for name in NAMES_A_SERVER if args.get(name) is not None), None)
    if key is None:
        return  # rollout_rules reports that no server is named
    url = args.get("vllm_server_base_url")
    if isinstance(url, str):
        parts = urlsplit(url if "//" in url else f"//{url}")
        host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    else:
        given = args.get("vllm_server_port", _VLLM_PORT)
        host, port = str(args["vllm_server_host"]), given if isinstance(given, int) else _VLLM_PORT
    reason = why_not_reached(host, port)
    if reason is not None:
        yield ConfigError(
            "no vLLM server answers",
            where=origins.where(key),
            got=f"{host}:{port}: {reason}",
            expected="a server that runs: docs/how-to/launch.md has the command",
            hint=Prose("launch.rollout_gpus=1 without this argument, and the run starts its own"),
        )


def _no_meeting(experiment: Experiment, origins: Origins) -> Iterator[UserError]:
    """Yield an error if the machines of a run cannot meet at this one. The port is free again afterwards."""
    launch = experiment.launch
    place = meeting_place(launch.rdzv) if launch.rdzv is not None else None
    if launch.nodes == 1 or launch.slurm is not None or place is None:
        return

    def problem(what: str, got: str, expected: str, hint: str = "") -> UserError:
        hint = hint or f"launch.rdzv={own_host()}:{place.port}"
        where = origins.where("launch.rdzv")
        return ConfigError(f"launch.rdzv {what}", where=where, got=got, expected=expected, hint=hint)

    try:
        if place.is_own_alone():
            got = f"{place.host}, which is {socket.gethostbyname(place.host)} here"
            expected = "a name or address by which the other machines reach this one"
            yield problem("is a name that leads only this machine to itself", got, expected)
        else:
            place.listen().close()
    except socket.gaierror as error:
        expected = "this machine's name or address as the other machines reach it"
        yield problem("names a host that nobody knows", f"{place.host}: {error.strerror}", expected)
    except OSError as error:
        got = f"{place}: {error.strerror}"
        if error.errno == errno.EADDRINUSE:
            yield problem("is in use", got, "a port that is free", f"launch.rdzv={place.host}:{place.port + 1}")
        else:
            expected = "where the machines meet is the first, which this one is"
            hint = f"launch.rdzv={own_host()}:{place.port}, or rlhf join {place}"
            yield problem("is not an address of this machine", got, expected, hint)


def why_not_reached(host: str, port: int) -> str | None:
    """Return why the port does not accept a connection within two seconds, or None if it does."""
    try:
        with socket.create_connection((host, port), timeout=_CONNECT_TIMEOUT_S):
            return None
    except OSError as error:
        return error.strerror or str(error) or type(error).__name__
