"""List everything in a frozen configuration that runs code, submits a job or sends data.

A user of another user's run sees this list first. `tests/config/test_asked_keys.py` walks the schema and TRL's
arguments, and fails for a key that is neither here nor known to be harmless.
"""

from __future__ import annotations

import json
from functools import cache

import yaml

from rlhf_cli.config.conf_folders import shipped_dir
from rlhf_cli.config.schema.reward_sections import AGGREGATES
from rlhf_cli.text.json_values import JsonTree, leaves, section
from rlhf_cli.text.regular_files import SAFE_LOADER

_OF_TRL = (
    "accelerator_config generation_kwargs hub_always_push hub_model_id hub_private_repo hub_revision hub_strategy "
    "log_completions_hub_repo model_init_kwargs optim_args push_to_hub torch_compile_backend trackio_bucket_id "
    "teacher_model_server_url teacher_tokenizer_name_or_path "
    "trackio_space_id trackio_static_space_id vllm_server_base_url vllm_server_host vllm_server_port"
)
ASKED = {f"trainer.args.{name}" for name in _OF_TRL.split()} | {
    *("trainer.class", "trainer.callbacks", "model.trust_remote_code", "launch.slurm", "launch.vllm"),
    *("launch.accelerate_config", "track.entity", "sweep.space", "tools", "environment", "rollout"),
}
"""Keys that are always listed, with all keys below them."""
WORDS = {"aggregate": AGGREGATES, "track.mode": ("offline", "none")}
"""Key -> its values that are not listed."""
_SENDS = ("url", "api_key_env")


def asked_of(config: JsonTree) -> list[str]:
    """Return `key: value` for everything in a configuration that runs, submits or sends, in its order."""
    trusted = section(config, "model").get("trust_remote_code") not in (None, False)
    lines = []
    for key, value in leaves(config):
        runs_with_model = trusted and key.startswith(("model.", "critic.", "teacher.")) and isinstance(value, str)
        is_set = not isinstance(value, dict | list) and value not in (None, False, "")
        if is_set and (runs_with_model or _is_asked(key, value, config)):
            text = value if isinstance(value, str) and value.isprintable() else json.dumps(value, default=str)
            lines.append(f"{key}: {text}")
    return lines


def _is_asked(key: str, value: object, config: JsonTree) -> bool:
    path = key.split(".")
    depth = {"rewards": 2, "advantages": 1}.get(path[0], len(path))
    if path[depth : depth + 1] in (["fn"], ["args"]):
        owner = config if depth == 1 else section(config, path[0])
        fn, name = section(owner, path[depth - 1]).get("fn"), path[depth + 1] if len(path) > depth + 1 else ""
        shown = _shipped_functions().get(fn) if isinstance(fn, str) else None
        is_wall = name != "isolation" or value != "limits"
        if shown is None or (path[depth] == "args" and (name in _SENDS or name not in shown or not is_wall)):
            return True
    return (
        (isinstance(value, str) and "${oc.env:" in value)
        or any(".".join(path[:depth]) in ASKED for depth in range(1, len(path) + 1))
        or (key in WORDS and value not in WORDS[key])
        or (key == "run.root" and (str(value).startswith(("/", "~")) or ".." in str(value)))
    )


@cache
def _shipped_functions() -> dict[str, frozenset[str]]:
    """Return the functions that the shipped conf/reward and conf/advantages name -> the arguments that they show."""
    found: dict[str, frozenset[str]] = {}
    for file in sorted([*shipped_dir().glob("reward/*.yaml"), *shipped_dir().glob("advantages/*.yaml")]):
        reward = yaml.load(file.read_text(encoding="utf-8"), Loader=SAFE_LOADER)
        found[reward["fn"]] = found.get(reward["fn"], frozenset()) | frozenset(reward.get("args") or ())
    return found
