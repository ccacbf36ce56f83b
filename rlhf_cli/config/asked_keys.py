"""List everything in a frozen configuration that runs code, submits a job or sends data.

Whoever uses another user's run is told this list first. It fails closed: a text, or a switch that is on, is listed
unless its key is known to be harmless. `tests/config/test_asked_keys.py` fails for a key in neither table.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache

import yaml

from rlhf_cli.config.conf_folders import shipped_dir
from rlhf_cli.config.schema.reward_sections import AGGREGATES
from rlhf_cli.config.trl_args import fields_of
from rlhf_cli.tables.trl_trainers import TRAINERS
from rlhf_cli.text.json_values import JsonTree, JsonValue, section
from rlhf_cli.text.yaml_loader import SAFE_LOADER

_Path = tuple[str, ...]


def _keys(groups: Mapping[str, str]) -> frozenset[str]:
    return frozenset(f"{group}{name}" for group, names in groups.items() for name in names.split())


ASKED = _keys(
    {
        "": "trainer.class model.trust_remote_code launch.slurm launch.vllm launch.rdzv launch.accelerate_config "
        "track.entity sweep.space",
        "trainer.args.": "accelerator_config generation_kwargs hub_always_push hub_model_id hub_private_repo "
        "hub_revision hub_strategy log_completions_hub_repo optim_args push_to_hub torch_compile_backend "
        "trackio_bucket_id trackio_space_id trackio_static_space_id vllm_server_base_url vllm_server_host "
        "vllm_server_port",
    }
)
"""Keys that are listed with whatever value they have, and all keys below them."""

HARMLESS = _keys(
    {
        "": "primary.by primary.otherwise kl.where kl.controller critic.init critic.share truncation.policy "
        "truncation.mode profile warn guards.no_signal stop.when stop.*.when expect.metric expect.*.metric expect.at "
        "expect.*.at sweep.objective sweep.sampler sweep.prune",
        "data.": "world args path subset split revision rename select transcripts prompt overlong_prompts "
        "mix.*.world mix.*.args mix.*.path mix.*.subset mix.*.split mix.*.revision mix.*.rename mix.*.select "
        "eval.world eval.args eval.path eval.subset eval.split eval.revision eval.rename eval.select",
        "model.": "path revision dtype tokenizer chat_template quantize lora.target_modules build.warm_start.worlds",
        "rewards.*.": "model weight.shape offset normalize gate.by gate.otherwise gate.*.by gate.*.otherwise eager "
        "on_error timeout_s isolate spread dtype device with_eos",
        "reward_model.": "margin.column margin.chosen margin.rejected margin.transform margin.on_bad on_bad_pair",
        "launch.": "processes device precision strategy offload rollout must_save_by hang_timeout_s",
        "track.": "tracker project tags notes",
        "run.": "name resume resume_weights_only keep_completions.last",
        "trainer.": "name trl dense generation baseline passes",
        "trainer.args.": "activation_checkpointing_kwargs cache_implementation chat_template_kwargs chat_template_path "
        "dataset_kwargs dataset_text_field debug eos_token gradient_checkpointing_kwargs include_for_metrics "
        "label_names  length_column_name liger_kernel_config log_level loss_type lr_scheduler_kwargs "
        "metric_for_best_model optim  optim_target_modules pad_to_multiple_of pad_token project reward_clip_range "
        "shuffle_by  transformers_continuous_batching_config vllm_structured_outputs_regex whiten_advantages",
    }
)
"""Keys that run, submit and send nothing, and all keys below them. `*` is a name of the user's or a place in a list."""

_WORDS = {("aggregate",): AGGREGATES, ("track", "mode"): ("offline", "none")}
_SENDS = ("url", "api_key_env")


def asked_of(config: JsonTree) -> list[str]:
    """Return `key: value` for everything in a configuration that runs, submits or sends, in its order."""
    trusted = section(config, "model").get("trust_remote_code") not in (None, False)
    lines = []
    for path, value in _leaves(config, ()):
        runs_with_model = trusted and path[:1] in (("model",), ("critic",)) and isinstance(value, str)
        if runs_with_model or _is_asked(path, value, config):
            text = value if isinstance(value, str) and value.isprintable() else json.dumps(value, default=str)
            lines.append(f"{'.'.join(path)}: {text}")
    return lines


def _leaves(node: JsonValue, path: _Path) -> Iterator[tuple[_Path, JsonValue]]:
    if isinstance(node, dict | list):
        for name, value in node.items() if isinstance(node, dict) else enumerate(node):
            yield from _leaves(value, (*path, str(name)))
    else:
        yield path, node


def _is_asked(path: _Path, value: JsonValue, config: JsonTree) -> bool:
    if value is None or value is False or value == "":
        return False
    if (isinstance(value, str) and "${oc.env:" in value) or _is_below(path, ASKED):
        return True
    if isinstance(value, int | float) and value is not True:
        return False
    if path in _WORDS:
        return value not in _WORDS[path]
    if path == ("run", "root"):
        return str(value).startswith(("/", "~")) or ".." in str(value)
    if path[:1] == ("rewards",) and path[2:3] in (("fn",), ("args",)):
        return _is_asked_of_reward(path, value, section(section(config, "rewards"), path[1]).get("fn"))
    if path[:2] == ("trainer", "args") and (trl := section(config, "trainer").get("trl")) in TRAINERS:
        field = fields_of(str(trl)).get(path[2])
        if field is not None and value in (True, *field.choices):
            return False  # the test lists TRL's switches and words
    return not _is_below(path, HARMLESS)


def _is_asked_of_reward(path: _Path, value: JsonValue, fn: JsonValue) -> bool:
    """Return whether a function is none of the shipped ones, or an argument opens a hole in it or is not shipped."""
    arguments = _shipped_rewards().get(fn) if isinstance(fn, str) else None
    if arguments is None or path[2] == "fn":
        return arguments is None
    name = path[3] if len(path) > 3 else ""
    return name in _SENDS or name not in arguments or (name == "isolation" and value == "limits")


@cache
def _shipped_rewards() -> dict[str, frozenset[str]]:
    """Return the functions that the shipped conf/reward names -> the arguments that it shows."""
    found: dict[str, frozenset[str]] = {}
    for file in sorted((shipped_dir() / "reward").glob("*.yaml")):
        reward = yaml.load(file.read_text(encoding="utf-8"), Loader=SAFE_LOADER)
        found[reward["fn"]] = found.get(reward["fn"], frozenset()) | frozenset(reward.get("args") or ())
    return found


@cache
def _parts(keys: frozenset[str]) -> list[_Path]:
    return [tuple(key.split(".")) for key in keys]


def _is_below(path: _Path, keys: frozenset[str]) -> bool:
    return any(
        len(key) <= len(path) and all(one in ("*", part) for one, part in zip(key, path, strict=False))
        for key in _parts(keys)
    )
