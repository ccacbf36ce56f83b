"""Translate `launch.rollout` to TRL's arguments."""

from __future__ import annotations

import os

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.plan.rollout_server_plan import GROUP_PORT_VARIABLE, URL_VARIABLE


def rollout_args(experiment: Experiment) -> dict[str, object]:
    """Return the arguments that select the generation backend; empty if the model itself generates.

    The address of a run's own server, and its port for new weights, are known only after it has started: the launcher
    puts both into the environment of the ranks. An external server is configured in `trainer.args`.
    """
    launch = experiment.launch
    if launch.rollout == "continuous":
        return {"use_transformers_continuous_batching": True}
    if launch.rollout == "vllm":
        return {"use_vllm": True, "vllm_mode": "colocate"}
    if launch.rollout != "vllm_server":
        return {}
    args: dict[str, object] = {"use_vllm": True, "vllm_mode": "server"}
    if launch.rollout_gpus and (url := os.environ.get(URL_VARIABLE)):
        args["vllm_server_base_url"] = url
    is_free = "vllm_group_port" not in experiment.trainer.args
    if launch.rollout_gpus and is_free and (port := os.environ.get(GROUP_PORT_VARIABLE)):
        args["vllm_group_port"] = int(port)
    return args
