"""Translates an `accelerate config` file into the environment of the ranks, with accelerate's own functions.

These functions import torch, so they run once per run in a separate process. It prints the variables that `accelerate
launch --config_file FILE` would set for its processes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from rlhf_cli.errors import ConfigError

_TIMEOUT_S = 120
_OURS = (
    *("PYTHONPATH", "MASTER_ADDR", "MASTER_PORT", "RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE"),
    *("LOCAL_WORLD_SIZE", "TORCHELASTIC_USE_AGENT_STORE"),
)
"""Variables that the launch plan sets itself."""


def accelerate_environment(file: Path, *, where: str) -> dict[str, str]:
    """Return the variables that accelerate sets for `file`, without those that place a rank.

    Raise ConfigError with accelerate's own message if accelerate rejects the file.
    """
    python_path = os.pathsep.join(entry for entry in sys.path if entry)
    done = subprocess.run(
        [sys.executable, "-m", __name__, str(file)],
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
        env={**os.environ, "PYTHONPATH": python_path},
    )
    if done.returncode != 0:
        said = done.stderr.strip().splitlines()
        raise ConfigError(
            f"accelerate refuses {file}",
            where=where,
            got=said[-1] if said else f"exit code {done.returncode}",
            hint="accelerate config --config_file FILE",
        )
    variables: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return variables


def set_by_accelerate(file: str) -> dict[str, str]:
    """Return the variables that accelerate's launcher would add to, or change in, the environment of its processes.

    Follows `accelerate.commands.launch.launch_command` (accelerate 1.15) up to the point where it starts processes.
    """
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils.launch import (
        prepare_deepspeed_cmd_env,
        prepare_multi_gpu_env,
        prepare_simple_launcher_cmd_env,
    )

    args: argparse.Namespace = launch_command_parser().parse_args(["--config_file", file, "-m", "rlhf_cli"])
    args, defaults, has_precision = _validate_launch_command(args)
    args.main_process_port = 0  # we choose the port: accelerate would check that its own is free
    if args.use_deepspeed and not args.cpu:
        fields = [*defaults.deepspeed_config, *(["mixed_precision"] if has_precision else [])]
        args.deepspeed_fields_from_accelerate_config = ",".join(fields)
        _, environment = prepare_deepspeed_cmd_env(args)
    elif (args.use_fsdp or args.multi_gpu) and not args.cpu:
        environment = prepare_multi_gpu_env(args)
    else:
        args.main_process_ip = args.main_process_ip or "127.0.0.1"
        _, environment = prepare_simple_launcher_cmd_env(args)
    return changed(environment, os.environ)


def changed(environment: Mapping[str, str], before: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that are new or changed, without those that place a rank."""
    return {
        name: value for name, value in sorted(environment.items()) if before.get(name) != value and name not in _OURS
    }


if __name__ == "__main__":
    print(json.dumps(set_by_accelerate(sys.argv[1])))
