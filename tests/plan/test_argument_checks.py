"""Test values of TRL's arguments that are out of range or exclude each other, and notices about arguments."""

from __future__ import annotations

import contextlib
from ast import literal_eval
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import TrainingArguments

from rlhf_cli.errors import ConfigError
from rlhf_cli.plan.checks import argument_checks as checks
from rlhf_cli.plan.checks.facts import DataFacts, Notice, RewardFacts, Subject
from rlhf_cli.tables.trl_trainers import TRAINERS
from tests.support.planning import Refused, planned, subject_of, table, told, unsaid

QUICK = ("exp=quickstart", "launch=cpu")
_ARGS = "trainer.args."


_SECTIONS = ("exp", "trainer", "track", "model", "data", "expect")


def subject(words: str, processes: int = 1) -> Subject:
    """Quickstart, or another experiment, with these words; those without a section are trainer.args."""
    keys = {word: word.partition("=")[0] for word in words.split()}
    full = [word if "." in key or key in _SECTIONS else _ARGS + word for word, key in keys.items()]
    return subject_of(*QUICK[words.startswith(("exp=", "data=")) :], *full, processes=processes)


@pytest.mark.parametrize(
    ("word", "expected", "hint"),
    [
        ("temperature=0", "above 0", "temperature=1.0"),
        ("top_p=1.5", "above 0 and at most 1", "top_p=1.0"),
        ("top_k=-1", "at least 0", "top_k=0"),
        ("dataloader_prefetch_factor=0", "at least 1", None),
        ("save_steps=2.5", "above 0, and whole from 1 on", "save_steps=500"),
        ("max_steps=-7", "at least 1", None),
        ("learning_rate=-0.0", "at least 0", "learning_rate=1e-06"),
        ("vllm_group_port=65536", "at least 1 and at most 65535", "vllm_group_port=51216"),
        ("generation_kwargs.top_p=1.5", "above 0 and at most 1", None),
        ("generation_kwargs.num_return_sequences=2", "at least 1 and at most 1", None),
    ],
)
def test_out_of_range(refused: Refused, word: str, expected: str, hint: str | None) -> None:
    """The bounds of every argument: tests/tables/test_rows.py."""
    name, _, value = word.partition("=")
    error = refused(*QUICK, f"trainer.args.{word}")
    assert isinstance(error, ConfigError)
    assert error.where == f"trainer.args.{name} (command line)"
    assert str(error.got) == value
    assert str(error.expected).startswith(f"{expected}: ")
    assert error.hint == (f"'~trainer.args.{name}'" if hint is None else f"trainer.args.{hint}")


def test_a_range_is_only_of_a_trainers_own_arguments() -> None:
    """DPO has no `epsilon`, which gets another error, and samples nothing."""

    def out_of_range(trainer: str, rollout: str = "hf", **args: object) -> list[str]:
        settings = SimpleNamespace(
            args=args, row=TRAINERS[trainer], trl=trainer, setting=lambda name: args.get(name, "steps")
        )
        experiment = SimpleNamespace(trainer=settings, launch=SimpleNamespace(rollout=rollout))
        looked_at: Any = SimpleNamespace(experiment=experiment, where=str)
        return [str(problem[0]).removeprefix(_ARGS) for problem in told(checks.range_problems(looked_at))]

    wrong = {"epsilon": -1.0, "temperature": 0.0, "learning_rate": -1.0}
    trainers = ("GRPOTrainer", "DPOTrainer", "DistillationTrainer")
    found = {name: sorted(out_of_range(name, **wrong)) for name in trainers}
    sampled = ["learning_rate", "temperature"]
    assert found == dict(zip(trainers, [sorted(wrong), sampled[:1], sampled], strict=True))
    bounds = {"temperature": 0.01, "top_p": 1, "min_p": 0, "top_k": 0, "adam_beta1": 0, "max_steps": -1, "beta": 0}
    bounds |= {"learning_rate": 0.0, "max_completion_length": 1, "logging_steps": 0.5, "bf16": True}
    assert out_of_range("GRPOTrainer", **bounds) == []
    assert out_of_range("GRPOTrainer", "vllm", top_k=-1, epsilon=-1.0) == ["epsilon"]  # -1: all tokens in vLLM
    assert out_of_range("GRPOTrainer", "vllm", top_k=-2) == ["top_k"]
    assert out_of_range("GRPOTrainer", logging_strategy="no", logging_steps=0, save_steps=0) == ["save_steps"]


SAMPLED = """
A.generation_kwargs.temperature=0.5                             | A.temperature=0.5
A.generation_kwargs.temperature=0.5 trainer=rloo                | A.temperature=0.5
A.generation_kwargs.temperature=0.5 trainer=ppo                 | A.temperature=0.5
A.generation_kwargs.temperature=0.5 temperature=0.5             |
A.generation_kwargs.do_sample=false                             | do_sample
A.generation_kwargs={do_sample:true,top_p:0.9,num_beams:2}      |
exp=toy_sft                                                     |
"""


@pytest.mark.parametrize(("words", "hint"), table(SAMPLED))
def test_sampling_is_as_the_loss_reads_it(words: str, hint: str) -> None:
    """TRL divides the scores by `temperature` in its losses; `generation_kwargs` goes to the sampling alone."""
    found = list(checks.sampling_problems(subject(words)))
    assert len(found) == bool(hint)
    assert all(isinstance(error, ConfigError) and hint in str(error.hint) for error in found)


LASTING = """
warmup_steps=100                                          | 100 | A.warmup_steps=10
warmup_steps=100                                          | 101 |
warmup_steps=100                                          | 0   |
warmup_steps=0.9                                          | 50  |
warmup_steps=0.1                                          | 1   |
trainer=ppo warmup_steps=30 critic.warmup_steps=40        | 30  | A.warmup_steps=3 critic.warmup_steps=3
trainer=ppo warmup_steps=30 critic.warmup_steps=40        | 40  | critic.warmup_steps=4
rewards.format.weight={start:0,end:1,steps:60}            | 59  | rewards.format.weight.steps=59
rewards.format.weight={start:0,end:1,steps:60}            | 60  |
rewards.format.weight={start:0,end:1,steps:60}            | 0   |
expect={metric:total,at:60,at_least:1}                    | 59  | expect.at=end
expect={metric:total,at:end,at_least:1}                   | 59  |
expect={one:{metric:total,at:60,at_least:1}}              | 59  | expect.one.at=end
"""


@pytest.mark.parametrize(("words", "steps", "instead"), table(LASTING))
def test_what_lasts_longer_than_the_run_gives_a_notice(words: str, steps: str, instead: str) -> None:
    found = told(checks.length_notices(subject(words), literal_eval(steps or "None")))
    for (kind, text), to_type in zip(found, instead.split(), strict=True):
        assert kind == {"rewards": "weight", "expect": "expect"}.get(to_type.partition(".")[0], "warm-up")
        assert str(text).startswith(f"{to_type.partition('=')[0]} (command line) is ")
        assert f"the run ends after {steps} steps" in str(text)
        assert f" {to_type}" in str(text)


UNREAD = """
num_train_epochs=3                            | A.num_train_epochs          | max_steps=120; A.max_steps=-1
num_train_epochs=3 max_steps=5                |                             |
num_train_epochs=3 max_steps=-1               |                             |
~A.max_steps num_train_epochs=3               |                             |
eval_steps=5                                  | A.eval_steps                | eval_strategy=no; A.eval_strategy=steps
eval_steps=5 eval_strategy=no                 |                             |
save_strategy=no                              |                             |
vllm_tensor_parallel_size=2                   | A.vllm_tensor_parallel_size | launch.rollout=hf; launch.rollout=vllm
hub_model_id=a/b                              | A.hub_model_id              | push_to_hub=false; A.push_to_hub=true
optim_args='"a=1"'                            | A.optim_args                | the default optim; A.optim=sgd
optim_args='"a=1,b=2"' optim=rmsprop          |                             |
optim_target_modules=[a]                      | A.optim_target_modules      | the default optim; A.optim=galore_adamw
track.mode=none track.project=x track.notes=y | track.project track.notes   | track=none; track=wandb_offline
track=mlflow track.project=x track.entity=y   | track.entity                | track=mlflow; track=wandb_offline
track.project=x track.entity=y                |                             |
guards.no_signal=9 guards.max_error_share=0.5 |                             |
trainer=ppo kl.where=none kl.coef=0.3         | kl.coef                     | kl.where=none; kl.where=reward
exp=toy_sft guards.no_signal=9 trainer.passes=plain| guards.no_signal trainer.passes | trainer=sft; trainer=grpo
guards.max_error_share=1 guards.error_window=9| guards.error_window         | guards.max_error_share=1; any less
model.revision=main                           | model.revision              | model.build; model=local
model=local model.path=a/b model.revision=main|                             |
rewards.correct.weight=0 rewards.format.weight=0                                             |                     |
rewards.correct.weight=0 rewards.format.weight=0 rewards.brevity.weight=0                    | correct,            |
learning_rate=0.999                                                                          |                     |
learning_rate=1                                                                              | A.learning_rate     |
A.transformers_continuous_batching_config.page_size=8 launch.rollout=continuous              |                     |
A.transformers_continuous_batching_config.page_size=8 | batching_config   | launch.rollout=hf; launch.rollout=continuous
lr_scheduler_type=constant warmup_steps=9 | A.warmup_steps | RATE=constant; A.RATE=constant_with_warmup
exp=toy_dpo lr_scheduler_type=constant    |                |
exp=toy_dpo debug=overfit_rows            |                |
exp=toy_dpo label_smoothing=0.1 | A.label_smoothing | the default LOSS; A.LOSS=robust
exp=toy_dpo label_smoothing=0.1 LOSS=[ipo,exo_pair] |   |
exp=toy_dpo trainer=cpo label_smoothing=0.1         |   |
exp=toy_dpo trainer=cpo label_smoothing=0.1 LOSS=ipo | A.label_smoothing | LOSS=ipo; A.LOSS=sigmoid
epsilon=0.1 LOSS=sapo delta=4 | A.epsilon A.delta | LOSS=sapo; A.LOSS=dapo
trainer=gmpo epsilon=0.1 LOSS=sapo |              |
exp=toy_dpo A.label_smoothing_factor=0.1 | A.label_smoothing_factor | trainer=dpo; trainer=sft
exp=toy_sft A.label_smoothing_factor=0.1 |        |
train_sampling_strategy=group_by_length  | A.train_sampling_strategy | trainer=grpo; trainer=sft
LOSS=cispo                               | LOSS=cispo                |
LOSS=cispo epsilon_high=5                |                           |
"""


@pytest.mark.parametrize(("words", "keys", "instead"), table(UNREAD, RATE="lr_scheduler_type", LOSS="loss_type"))
def test_what_no_one_reads_gives_a_notice(words: str, keys: str, instead: str) -> None:
    found = [str(text) for _, text in told(checks.unread_arguments(subject(words)))]
    for text, key in zip(found, keys.split(), strict=True):
        assert f"{key} " in text
        assert text.endswith(f"{key} (command line) is not read with {instead} reads it") or not instead


@pytest.mark.parametrize(
    ("words", "texts"),
    [
        (["guards.no_signal=9", "run.keep_completions.last=5"], []),
        (["stop.when=approx_kl > 1"], ["stop (command line) reads 'approx_kl'"]),
        (["trainer=ppo", "stop.when=approx_kl > 1"], ["the nearest is ppo/approx_kl_k3_old_new"]),
        (["expect={metric: acuracy, at_least: 1}"], ["expect (command line) reads 'acuracy'"]),
        (["stop=[{when: 'step_time > 9'}, {when: 'passes/slots > 1'}]"], []),
        (
            ["reward@rewards.mine=length_ramp", "rewards.mine.fn=./mine.py:f", "~rewards.mine.args", "stop.when=f > 1"],
            [],
        ),
    ],
)
def test_a_metric_that_no_one_logs_gives_a_notice(place: Path, words: list[str], texts: list[str]) -> None:
    (place / "mine.py").write_text("def f(completions, log_metric, **columns): return [log_metric('f', 1)]\n")
    found = [notice.text for notice in planned(*QUICK, *words).notices if notice.subject == "no effect"]
    assert len(found) == len(texts)
    assert all(text in one for text, one in zip(texts, found, strict=True))


def test_a_key_that_is_typed_twice_gives_a_notice() -> None:
    (told,) = checks.repeated_words(subject_of(*QUICK, "seed=1", "seed=1", "+expect=null", "seed=2", "expect=null"))
    assert told == Notice("seed", "typed 3 times; the last one counts: seed=2")


def test_a_plan_tells_of_a_warm_up_that_fills_the_run() -> None:
    words = ("trainer.args.max_steps=10", "trainer.args.warmup_steps=10")
    assert len(planned(*QUICK, *words).notices) == len(planned(*QUICK, words[0]).notices) + 1


# what is looked at; what is typed; the key of the error, what it got and expected; what to type
EXCLUDED = """
refused_combinations | ROUND=64 SPG=1 | A.ROUND | 64 | SPG excludes it | A.SPG=null, or '~KEY'
refused_combinations | ROUND=64
refused_combinations | RATE=greedy | A.RATE | 'greedy' | it needs evaluations | A.eval_strategy=steps, or KEY=linear
refused_combinations | RATE=greedy HELD eval_strategy=steps
contradictions | BEST | A.eval_strategy | eval_strategy=no, save_strategy=steps | None | KEY=steps
contradictions | BEST HELD save_strategy=no eval_strategy=epoch | A.save_strategy | EV=epoch, S=no | None | KEY=epoch
contradictions | BEST save_strategy=best
contradictions | BEST HELD eval_strategy=steps eval_steps=20 save_steps=50 | A.save_steps | TWENTY | None | KEY=20
contradictions | BEST HELD eval_strategy=steps logging_steps=20 save_steps=50 | A.save_steps | TWENTY | None | KEY=20
contradictions | BEST HELD eval_strategy=steps eval_steps=0.2 save_steps=0.5 | A.save_steps | SHARES | None | KEY=0.2
contradictions | BEST HELD eval_strategy=steps eval_steps=0 logging_steps=0 save_steps=50
refused_combinations | tf32=true | A.tf32 | True | GPUS | KEY=null, or '~KEY'
refused_combinations | remove_unused_columns=true | A.remove_unused_columns | True | REWARDS | KEY=false
refused_combinations | SYNC=true | A.SYNC | True | with beta=0 there is no reference model | A.beta=0.04, or '~KEY'
refused_combinations | SYNC=true beta=0.04
refused_combinations | trainer=ppo SYNC=true model.lora.r=4 | A.SYNC | True | LORA itself | KEY=false, or '~KEY'
refused_combinations | exp=toy_dpo WGH=true loss_type=[aot,sft] | A.WGH | True | AOT | A.loss_type=sigmoid, or '~KEY'
refused_combinations | IS_mode=token_truncate IS_clip_max=null | A.IS_correction | True | BOUND | A.IS_clip_max=3.0
order_problems | data.sort=a | data.sort | shuffle_dataset=true | ORDER | A.shuffle_dataset=false, or KEY=null
order_problems | data.sort=a shuffle_dataset=false
order_problems | MIXED data.mix.y.sort=a | data.mix.y.sort | shuffle_dataset=true | ORDER | FALSE, or KEY=null
order_problems | exp=toy_sft data.sort=a | data.sort | BY_TURN=random | ORDER | A.BY_TURN=sequential, or KEY=null
order_problems | exp=toy_sft data.sort=a BY_TURN=sequential
order_problems | exp=toy_sft
"""
_SHORT = {
    **{"BEST": "load_best_model_at_end=true", "HELD": "data.eval.fraction=0.1", "EV=": "eval_strategy="},
    **{"TWENTY": "save_steps=50, eval_steps=20", ", S=": ", save_strategy=", "SYNC": "sync_ref_model"},
    **{"SHARES": "save_steps=0.5, eval_steps=0.2"},
    **{"REWARDS": "rewards read the columns of the data", "LORA": "with model.lora the reference is the model"},
    **{"WGH": "use_weighting", "AOT": "aot cannot weigh pairs", "IS_": "vllm_importance_sampling_"},
    **{"RATE": "lr_scheduler_type", "GPUS": "TF32 is a format of GPUs, and this run uses the CPU"},
    **{"SPG": "steps_per_generation", "ROUND": "generation_batch_size"},
    **{"BOUND": "a mode that truncates needs a bound", "ORDER": "rows that stay in order"},
    **{"FALSE": f"{_ARGS}shuffle_dataset=false", "BY_TURN": "train_sampling_strategy"},
    "MIXED": "~data.world ~data.args data.mix.x.world=toy_sums data.mix.y.world=toy_sums",
}


@pytest.mark.parametrize("cells", table(EXCLUDED, **_SHORT), ids=lambda cells: cells[1])
def test_arguments_that_exclude_each_other_are_refused_before_a_run(cells: list[str]) -> None:
    name, words, *error = [cell.replace("KEY", cells[-4]) for cell in cells] if len(cells) > 2 else cells
    found = told(getattr(checks, name)(subject(words)))
    assert [[str(part) for part in parts] for parts in found] == ([error] if error else [])


@pytest.mark.parametrize("save_steps", [1, 2, 6, 7, 0.1, 0.3, 0.35, 0.5])
@pytest.mark.parametrize("eval_steps", [1, 3, 0.1, 0.25, 0.5])
def test_how_often_is_saved_is_judged_as_transformers_does(
    tmp_path: Path, save_steps: float, eval_steps: float
) -> None:
    words = f"load_best_model_at_end=true data.eval.fraction=0.1 eval_strategy=steps eval_steps={eval_steps}"
    found = told(checks.contradictions(subject(f"{words} save_steps={save_steps}")))
    steps = {"eval_strategy": "steps", "eval_steps": eval_steps, "save_steps": save_steps}
    with contextlib.ExitStack() as stack:
        if found:
            stack.enter_context(pytest.raises(ValueError, match="multiple of the evaluation"))
        TrainingArguments(output_dir=str(tmp_path), use_cpu=True, load_best_model_at_end=True, **steps)


_RATE, _SAVED, _MIN = f"{_ARGS}lr_scheduler_kwargs", f"{_ARGS}gradient_checkpointing_kwargs", "cosine_with_min_lr"


@pytest.mark.parametrize(
    ("words", "key", "hint"),
    [
        (f"{_RATE}={{foo:1}}", f"{_RATE}.foo", f"'~{_RATE}.foo'"),
        (f"{_RATE}={{min_lr_rate:0.1}}", f"{_RATE}.min_lr_rate", f"{_ARGS}lr_scheduler_type={_MIN}"),
        (f"lr_scheduler_type={_MIN} {_RATE}.min_lr_rate=low", f"{_RATE}.min_lr_rate", f"'~{_RATE}.min_lr_rate'"),
        ("lr_scheduler_type=warmup_stable_decay", _RATE, f"{_RATE}.num_decay_steps="),
        (f"{_SAVED}={{use_reentrant:maybe}}", f"{_SAVED}.use_reentrant", f"'~{_SAVED}.use_reentrant'"),
        (f"{_RATE}=foo", _RATE, f"'~{_RATE}'"),
        (f"{_SAVED}={{every_n_layers:2}}", f"{_SAVED}.every_n_layers", f"'~{_SAVED}.every_n_layers'"),
        (f"{_SAVED}={{selective:true}}", f"{_SAVED}.selective", f"'~{_SAVED}.selective'"),
        ("liger_kernel_config={rop:true}", "liger_kernel_config.rop", "liger_kernel_config.rope=true"),
        ("transformers_continuous_batching_config={sed:1}", "transformers_continuous_batching_config.sed", "seed=1"),
        (f"{_SAVED}={{use_rentrant:true}}", f"{_SAVED}.use_rentrant", f"{_SAVED}.use_reentrant=true"),
        ("accelerator_config={split_batchs:true}", "accelerator_config.split_batchs", "split_batches=true"),
        ("accelerator_config={even_batches:1}", "accelerator_config.even_batches", "even_batches=true"),
    ],
)
def test_what_would_end_a_run_after_its_model_was_loaded(refused: Refused, words: str, key: str, hint: str) -> None:
    full = [word if word.startswith(_ARGS) else _ARGS + word for word in words.split()]
    error = refused(*QUICK, *full)
    assert isinstance(error, ConfigError)
    assert str(error.where).startswith(f"{_ARGS}{key.removeprefix(_ARGS)} (")
    assert hint in str(error.hint)


def test_negative_control_keys_that_libraries_read() -> None:
    planned(*QUICK, f"{_ARGS}lr_scheduler_type={_MIN}", f"{_RATE}.min_lr_rate=0.1", f"{_SAVED}.use_reentrant=false")
    planned(*QUICK, f"{_ARGS}lr_scheduler_type=warmup_stable_decay", f"{_RATE}.num_decay_steps=2")
    planned("exp=toy_sft", "launch=cpu", f"{_ARGS}activation_checkpointing_kwargs.every_n_layers=2")
    planned("exp=toy_sft", "launch=cpu", f"{_ARGS}gradient_checkpointing=true", f"{_SAVED}.selective=true")
    planned(*QUICK, f"{_RATE}='{{\"num_cycles\": 2}}'")  # transformers itself reads JSON


ROUNDS = """
exp=toy_ppo kl.controller={target:6,horizon:32} SIZE=40| 1 | 32 completions; a round has 160 / than 32; 20 / KEY=3200
exp=toy_ppo kl.controller={target:6,horizon:33} SIZE=40| 1 |
sampling.keep_groups.by=correct SIZE=12                | 2 | 12 completions a / a multiple of 8 / A.KEY=8, or
sampling.keep_groups.by=correct SIZE=16                | 2 |
sampling.keep_groups.by=total                          | 1 | or sampling.keep_groups.by=correct
sampling.keep_groups.by=total PRIMARY                  | 1 | or sampling.keep_groups.by=format
"""
SIZE = "per_device_train_batch_size"
EVAL = "data.eval.fraction=0.1 eval_strategy=steps per_device_eval_batch_size"
_WORDS = table(ROUNDS, SIZE=SIZE, PRIMARY="primary.by=format primary.at_least=1")


@pytest.mark.parametrize(("words", "processes", "parts"), _WORDS)
def test_what_a_round_cannot_be_or_depends_on(words: str, processes: str, parts: str) -> None:
    """A round of PPO has 4 x 40 completions, and a fifth of them is 32."""
    key = SIZE if "groups" in words else "kl.controller.horizon"
    found = told(checks.step_problems(subject(words, int(processes)), DataFacts(), RewardFacts()))
    assert unsaid(found, parts.replace("KEY", key)) == []
    assert not found or len(found[0]) == 2 or str(found[0][0]).endswith(key)


@pytest.mark.parametrize(
    ("words", "processes", "kind"),
    [
        *((f"{SIZE}=12", 2, "train"), (f"{SIZE}=16", 2, None), (f"{SIZE}=12 gradient_accumulation_steps=2", 1, None)),
        *((f"{SIZE}=12 rewards.brevity.when=eval rewards.brevity.weight=0", 2, None),),
        *((f"{SIZE}=16 {EVAL}=12", 2, "eval"), (f"{SIZE}=16 {EVAL}=12 num_generations_eval=6", 2, None)),
    ],
)
def test_a_reward_that_compares_a_group_needs_it_in_one_process(words: str, processes: int, kind: str | None) -> None:
    """Each process scores its own completions: part of a group would be ranked by itself."""
    found = told(checks.step_problems(subject(words, processes), DataFacts(), RewardFacts(comparing=["brevity"])))
    size = f"{_ARGS}per_device_{kind}_batch_size"
    assert unsaid(found, f"{size} / 12 completions / {size}=8" if kind else "") == []


STAGES = """
exp=toy_kto max_steps=-1                         | 128 | prompt chosen rejected    | 1 | 12 |
exp=toy_kto max_steps=-1                         | 128 | prompt completion label   | 1 | 6  |
exp=toy_sft max_steps=-1 dataset_text_field=mine | 129 | mine                      | 1 | 6  |
exp=toy_sft max_steps=-1                         | 128 | text                      | 1 | 3  |
exp=toy_sft max_steps=-1                         | 0   |                           | 1 | 3  |
exp=toy_sft max_steps=-1 num_train_epochs=0      | 9   | text                      | 1 | 0  | 0 epochs
~A.max_steps num_train_epochs=0                  | 9   |                           | 1 | 0  | 0 epochs
ROWS trainer=sdft num_generations=2              | 62  | prompt privileged_context | 2 | 6  |
ROWS trainer=distillation teacher.path=a/b       | 21  | prompt                    | 1 | 3  |
ROWS trainer=distillation teacher.path=a/b       |     | prompt                    | 1 |    |
ROWS trainer=gkd teacher.path=a/b                | 20  | messages                  | 1 | 3  |
"""


@pytest.mark.parametrize(("words", "rows", "columns", "processes", "steps", "error"), table(STAGES))
def test_the_steps_of_a_stage(words: str, rows: str, columns: str, processes: str, steps: str, error: str) -> None:
    """Three epochs of 64, 128, or 7 rows x 3 batches x the processes a step. KTO makes two rows of a pair."""
    words = words.replace("ROWS", f"data=file data.path=x max_steps=-1 {SIZE}=7 gradient_accumulation_steps=3")
    data, plans = DataFacts(num_rows=literal_eval(rows or "None"), columns=tuple(columns.split())), list[Any]()

    def planning() -> Any:
        plans.append((yield from checks.step_problems(subject(words, int(processes)), data, RewardFacts())))

    epochs = f"{_ARGS}num_train_epochs"
    no_step = (epochs, "0 epochs without max_steps", "more than 0 of either", f"{epochs}=1, or {_ARGS}max_steps=100")
    assert told(planning()) == ([no_step] if error else [])
    assert plans[0].steps == literal_eval(steps or "None")


def test_worlds_with_a_column_that_this_one_lacks_are_named() -> None:
    source: Any = SimpleNamespace(source=SimpleNamespace(with_file=lambda error: error), rows=None)
    renaming = "data.rename.prompt=question data.rename.completion=COLUMN data.rename.label=COLUMN"
    renaming += "  # no column looks like completion and label: if none holds it, add it to the file"
    for words, hint in (
        ("exp=toy_kto", "data=toy_judgements, or data=toy_preferences, or data=hh_pairs"),
        ("data=file data.path=x trainer=kto", renaming),
    ):
        ((_, got, _, found),) = told(
            checks.step_problems(subject(words), DataFacts((source,), columns=("question",)), RewardFacts())
        )
        assert (got, found) == ("columns question", hint)


PACKAGES = """
track=none                                       |
launch.strategy=fsdp2 optim=adamw_torch use_liger_kernel=false |
optim=galore_adamw_8bit                          | A.optim: galore_torch, or A.optim=adamw_torch
optim=adamw_torch_4bit                           | A.optim: torchao, or A.optim=adamw_torch
optim=paged_lion_8bit                            | A.optim: bitsandbytes, or A.optim=adamw_torch
optim=stable_adamw                               | A.optim: torch-optimi, or A.optim=adamw_torch
model.lora.r=4 track=mlflow track.mode=none      | model.lora: peft, or model.lora=null
LOCAL model.lora.r=4 model.quantize=4bit         | model.quantize: bitsandbytes, or model.quantize=null; PEFT
launch.strategy=zero2                            | launch.strategy: deepspeed, or launch.strategy=ddp
launch.device=cuda launch.strategy=zero3         | launch.strategy: deepspeed, or launch.strategy=fsdp2
track=mlflow                   | track.tracker: 'rlhf-cli[mlflow]', or track=wandb_offline, or track=none
use_liger_kernel=true          | A.use_liger_kernel: A.use_liger_kernel=false
reward@rewards.a=trl_accuracy  | rewards.a.fn: 'rlhf-cli[math]'
reward@rewards.a=reasoning_gym | rewards.a.fn: reasoning-gym==0.1.25
"""


@pytest.mark.parametrize(("words", "needed"), table(PACKAGES))
def test_packages_that_are_not_installed(monkeypatch: pytest.MonkeyPatch, words: str, needed: str) -> None:
    typed = subject(words.replace("LOCAL", "model=local model.path=a/b"))
    assert told(checks.package_problems(subject("model.lora.r=4"))) == [], "peft is installed"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    found = [f"{key}: {hint}" for key, _, _, hint in told(checks.package_problems(typed))]
    assert "; ".join(found).replace("pip install ", "") == needed.replace(
        "PEFT", "model.lora: peft, or model.lora=null"
    )
