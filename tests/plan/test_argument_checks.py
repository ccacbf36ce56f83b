"""Test values of TRL's arguments that are out of range or exclude each other, and notices about arguments."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlhf_cli.errors import ConfigError
from rlhf_cli.plan.checks.argument_checks import range_problems
from rlhf_cli.tables.trl_trainers import TRAINERS
from tests.support.planning import Refused, planned

QUICK = ("exp=quickstart", "launch=cpu")


@pytest.mark.parametrize(
    ("word", "expected", "hint"),
    [
        ("temperature=0", "above 0", "temperature=1.0"),
        ("top_p=1.5", "above 0 and at most 1", "top_p=1.0"),
        ("top_k=-1", "at least 0", "top_k=0"),
        ("max_completion_length=0", "at least 1", "max_completion_length=512"),
        ("warmup_steps=-1", "at least 0", None),
        ("dataloader_prefetch_factor=0", "at least 1", None),
        ("adam_beta2=1", "at least 0 and below 1", "adam_beta2=0.999"),
        ("logging_steps=0", "above 0", None),
        ("save_steps=-5", "above 0", "save_steps=500"),
        ("max_steps=0", "at least 1", None),
        ("max_steps=-7", "at least 1", None),
        ("learning_rate=-0.0", "at least 0", "learning_rate=1e-06"),
        ("beta=-0.1", "at least 0", "beta=0.0"),
        ("max_grad_norm=-1", "at least 0", "max_grad_norm=1.0"),
        ("epsilon=-0.2", "at least 0", "epsilon=0.2"),
        ("ref_model_mixup_alpha=1.5", "at least 0 and at most 1", "ref_model_mixup_alpha=0.6"),
        ("per_device_eval_batch_size=0", "at least 1", None),
    ],
)
def test_out_of_range(refused: Refused, word: str, expected: str, hint: str | None) -> None:
    name, _, value = word.partition("=")
    error = refused(*QUICK, f"trainer.args.{word}")
    assert isinstance(error, ConfigError)
    assert error.where == f"trainer.args.{name} (command line)"
    assert str(error.got) == value
    assert str(error.expected).startswith(f"{expected}: ")
    assert hint is None or error.hint == f"trainer.args.{hint}"


@pytest.mark.parametrize(
    "words",
    [
        ["temperature=0.01", "top_p=1", "min_p=0", "top_k=0", "warmup_steps=0", "adam_beta1=0", "weight_decay=0"],
        ["save_strategy=no", "save_steps=0"],
        ["max_steps=-1", "learning_rate=0.0", "max_grad_norm=0", "beta=0"],
        ["max_completion_length=1", "repetition_penalty=0.5", "logging_steps=0.5"],
    ],
)
def test_negative_control_on_the_bound(words: list[str]) -> None:
    assert planned(*QUICK, *(f"trainer.args.{word}" for word in words))


def test_a_range_is_only_of_a_trainers_own_arguments() -> None:
    """DPO has no `epsilon`, which gets another error, and samples nothing."""

    def out_of_range(trainer: str, **args: object) -> list[str]:
        row = TRAINERS[trainer]
        settings = SimpleNamespace(args=args, row=row, trl=trainer, setting=lambda name: "steps")
        experiment = SimpleNamespace(trainer=settings, launch=SimpleNamespace(rollout="transformers"))
        subject: Any = SimpleNamespace(experiment=experiment, where=str)
        return [problem.where for problem in range_problems(subject) if isinstance(problem, ConfigError)]

    wrong = {"epsilon": -1.0, "temperature": 0.0, "learning_rate": -1.0}
    found = {name: sorted(out_of_range(name, **wrong)) for name in ("GRPOTrainer", "DPOTrainer")}
    every = [f"trainer.args.{name}" for name in sorted(wrong)]
    assert found == {"GRPOTrainer": every, "DPOTrainer": ["trainer.args.learning_rate"]}


@pytest.mark.parametrize(
    ("words", "steps"),
    [
        (("exp=quickstart", "trainer.args.warmup_steps=100", "trainer.args.max_steps=50"), 50),
        (("exp=toy_kto", "trainer.args.max_steps=20"), 20),
        (("exp=quickstart", "trainer=ppo", "critic.warmup_steps=9", "trainer.args.max_steps=8"), 8),
    ],
)
def test_a_warm_up_longer_than_the_run_gives_a_notice(words: tuple[str, ...], steps: int) -> None:
    (text,) = [notice.text for notice in planned(*words, "launch=cpu").notices if notice.subject == "warm-up"]
    assert "warmup_steps (" in text
    assert f"ends after {steps} steps" in text


@pytest.mark.parametrize(
    ("words", "texts"),
    [
        (["trainer.args.num_train_epochs=3"], ["trainer.args.max_steps=-1"]),
        (["trainer.args.num_train_epochs=3", "trainer.args.max_steps=5"], []),
        (["trainer.args.eval_steps=5"], ["trainer.args.eval_strategy=steps"]),
        (["trainer.args.eval_steps=5", "trainer.args.eval_strategy=steps", "data.eval.fraction=0.1"], []),
        (["trainer.args.save_strategy=no"], []),  # the shipped save_steps is not the user's
        (["trainer.args.vllm_tensor_parallel_size=2"], ["launch.rollout=vllm"]),
        (["trainer.args.transformers_continuous_batching_config.page_size=8"], ["launch.rollout=continuous"]),
        (["trainer.args.hub_model_id=a/b"], ["trainer.args.push_to_hub=true"]),
        (["trainer.args.optim_target_modules=[foo]"], ["trainer.args.optim=galore_adamw"]),
        (["track=none", "track.project=x"], ["track=wandb_offline"]),
        (["track.project=x", "guards.no_signal=9", "run.keep_completions.last=5"], []),
        (["trainer=ppo", "kl.where=none", "kl.coef=0.3"], ["kl.where=reward"]),
        (["model.revision=main"], ["model=local"]),
        (["guards.max_error_share=1", "guards.error_window=9"], ["guards.max_error_share=1"]),
        (["stop.when=approx_kl > 1"], ["stop (command line) reads 'approx_kl'"]),
        (["trainer=ppo", "stop.when=approx_kl > 1"], ["the nearest is ppo/approx_kl_k3_old_new"]),
        (["expect={metric: acuracy, at_least: 1}"], ["expect (command line) reads 'acuracy'"]),
        (["stop=[{when: 'step_time > 9'}, {when: 'passes/slots > 1'}]"], []),
        (
            ["reward@rewards.mine=length_ramp", "rewards.mine.fn=./mine.py:f", "~rewards.mine.args", "stop.when=f > 1"],
            [],
        ),
        (
            ["rewards.correct.weight=0", "rewards.format.weight=0", "rewards.brevity.weight=0"],
            ["weights of all rewards"],
        ),
    ],
)
def test_what_no_one_reads_gives_a_notice(place: Path, words: list[str], texts: list[str]) -> None:
    (place / "mine.py").write_text("def f(completions, log_metric, **columns): return [log_metric('f', 1)]\n")
    found = [notice.text for notice in planned(*QUICK, *words).notices if notice.subject == "no effect"]
    assert len(found) == len(texts)
    assert all(text in one for text, one in zip(texts, found, strict=True))


def test_a_schedule_longer_than_the_run_and_a_large_rate_give_notices() -> None:
    weight = "rewards.format.weight={start: 0, end: 1, steps: 60}"
    made = planned(*QUICK, weight, "trainer.args.max_steps=50", "trainer.args.learning_rate=1e5").notices
    assert {"weight", "learning rate"} <= {notice.subject for notice in made}
    made = planned(*QUICK, weight, "trainer.args.max_steps=60", "trainer.args.learning_rate=1e-3").notices
    assert not {"weight", "learning rate"} & {notice.subject for notice in made}


@pytest.mark.parametrize("value", ["49", "0.9", "0"])
def test_negative_control_a_warm_up_that_ends(value: str) -> None:
    made = planned(*QUICK, f"trainer.args.warmup_steps={value}", "trainer.args.max_steps=50")
    assert not [notice for notice in made.notices if notice.subject == "warm-up"]


def test_a_run_without_a_step(refused: Refused) -> None:
    words = (*QUICK, "~trainer.args.max_steps", "trainer.args.num_train_epochs=0")
    assert refused(*words).where == "trainer.args.num_train_epochs (command line)"
    assert planned(*words, "trainer.args.max_steps=3")


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("load_best_model_at_end=true", "trainer.args.eval_strategy=steps"),
        ("load_best_model_at_end=true eval_strategy=steps eval_steps=20 save_steps=50", "trainer.args.save_steps=20"),
        ("generation_batch_size=64 steps_per_generation=1", "'~trainer.args.generation_batch_size'"),
        ("lr_scheduler_type=reduce_lr_on_plateau", "eval_strategy=steps, or trainer.args.lr_scheduler_type=linear"),
        ("tf32=true", "trainer.args.tf32=null, or '~trainer.args.tf32'"),
        ("remove_unused_columns=true", "trainer.args.remove_unused_columns=false"),
        (  # what they refuse is a default, which nobody typed
            "vllm_importance_sampling_mode=token_truncate vllm_importance_sampling_clip_max=null",
            "trainer.args.vllm_importance_sampling_clip_max=3.0",
        ),
    ],
)
def test_arguments_that_exclude_each_other_are_refused_before_a_run(refused: Refused, words: str, hint: str) -> None:
    typed = [f"trainer.args.{word}" for word in words.split()]
    assert str(refused(*QUICK, "data.eval.fraction=0.1", *typed).hint).endswith(hint)


_ARGS = "trainer.args."
_RATE, _SAVED, _MIN = f"{_ARGS}lr_scheduler_kwargs", f"{_ARGS}gradient_checkpointing_kwargs", "cosine_with_min_lr"


@pytest.mark.parametrize(
    ("words", "key", "hint"),
    [
        (f"{_RATE}={{foo:1}}", f"{_RATE}.foo", f"'~{_RATE}.foo'"),
        (f"{_RATE}={{min_lr_rate:0.1}}", f"{_RATE}.min_lr_rate", f"{_ARGS}lr_scheduler_type={_MIN}"),
        (f"lr_scheduler_type={_MIN} {_RATE}.min_lr_rate=low", f"{_RATE}.min_lr_rate", f"'~{_RATE}.min_lr_rate'"),
        (f"{_RATE}=foo", _RATE, f"'~{_RATE}'"),
        ("lr_scheduler_type=warmup_stable_decay", _RATE, f"{_RATE}.num_decay_steps="),
        (f"{_SAVED}={{use_reentrant:maybe}}", f"{_SAVED}.use_reentrant", f"'~{_SAVED}.use_reentrant'"),
        (f"{_SAVED}={{use_rentrant:true}}", f"{_SAVED}.use_rentrant", f"{_SAVED}.use_reentrant=true"),
        (f"{_SAVED}={{every_n_layers:2}}", f"{_SAVED}.every_n_layers", f"'~{_SAVED}.every_n_layers'"),
        ("accelerator_config={split_batchs:true}", "accelerator_config.split_batchs", "split_batches=true"),
        ("accelerator_config={even_batches:1}", "accelerator_config.even_batches", "even_batches=true"),
        ("optim=sgd optim_args='momentun=0.9'", "optim_args.momentun", "optim_args='momentum=0.9'\""),
        ("optim_args=foo", "optim_args", f"'~{_ARGS}optim_args'"),
        ("push_to_hub=true", "push_to_hub", "unset HF_HUB_OFFLINE"),
        ("log_completions_hub_repo=a/b log_completions=true", "log_completions_hub_repo", "unset HF_HUB_OFFLINE"),
    ],
)
def test_what_would_end_a_run_after_its_model_was_loaded(
    refused: Refused, monkeypatch: pytest.MonkeyPatch, words: str, key: str, hint: str
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    full = [word if word.startswith(_ARGS) else _ARGS + word for word in words.split()]
    error = refused(*QUICK, *full)
    assert isinstance(error, ConfigError)
    assert str(error.where).startswith(f"{_ARGS}{key.removeprefix(_ARGS)} (")
    assert hint in str(error.hint)


def test_negative_control_keys_that_libraries_read() -> None:
    planned(*QUICK, f"{_ARGS}lr_scheduler_type={_MIN}", f"{_RATE}.min_lr_rate=0.1", f"{_SAVED}.use_reentrant=false")
    planned(*QUICK, f"{_ARGS}optim=sgd", f"\"{_ARGS}optim_args='momentum=0.9,nesterov=true'\"".strip('"'))
    planned("exp=toy_sft", "launch=cpu", f"{_ARGS}activation_checkpointing_kwargs.every_n_layers=2")
    planned(*QUICK, f"{_RATE}='{{\"num_cycles\": 2}}'")  # transformers itself reads JSON


def test_a_key_typed_twice_is_noted() -> None:
    (typed,) = [notice.text for notice in planned(*QUICK, "seed=1", "seed=2").notices if notice.subject == "typed"]
    assert typed.endswith(": seed=2")
    words = (*QUICK, "seed=2", "seed=2", "expect=null", "track=none")
    assert not [notice for notice in planned(*words).notices if notice.subject == "typed"]


@pytest.mark.parametrize(
    ("words", "is_noted"),
    [
        (("launch.processes=2", "trainer.args.steps_per_generation=2"), True),
        (
            ("launch.processes=2", "trainer.args.steps_per_generation=2", "trainer.args.gradient_accumulation_steps=2"),
            False,
        ),
        (("launch.processes=1", "trainer.args.steps_per_generation=2"), False),
    ],
)
def test_a_notice_that_processes_shuffle_their_own_rows_if_a_round_is_split(
    words: tuple[str, ...], is_noted: bool
) -> None:
    plan = planned("exp=toy_ppo", "launch.device=cpu", "trainer.args.gradient_accumulation_steps=1", *words)
    assert [notice.subject for notice in plan.notices if notice.subject == "minibatches"] == ["minibatches"] * is_noted
