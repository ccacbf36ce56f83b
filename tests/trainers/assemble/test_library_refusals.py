"""`check` and the run name the key of a value that TRL or transformers refuses.

The expectation is TRL's own: with our table emptied, the same words reach TRL's constructor, which refuses them too.
"""

from __future__ import annotations

import json
import linecache
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rlhf_cli
from rlhf_cli.cli import main
from rlhf_cli.config.schema.trainer_sections import Trainer
from rlhf_cli.errors import ConfigError, UserError
from rlhf_cli.models.tokenizer_files import EMBEDDED_TOKENIZER
from rlhf_cli.plan.checks import argument_checks
from rlhf_cli.plan.preflight import preflight
from rlhf_cli.plan.prepare import prepare
from rlhf_cli.tables.trl_values import REFUSALS
from rlhf_cli.trainers.assemble.trl_config import callbacks_of, refusal, refusals_named, trainer_class_of
from tests.support.small_runs import SMALL

_TINY = ["model=tiny_untrained", "model.build.hidden_size=16", "model.build.num_layers=1", "launch=cpu", "track=none"]
_TEACHER = ["data=toy_demonstrations", f"teacher.path={EMBEDDED_TOKENIZER}"]
_TAUGHT = ["trainer=sdft", "data=toy_demonstrations", "data.rename.privileged_context=completion"]
BASES = {
    "GRPO": SMALL,
    "RLOO": [*SMALL, "trainer=rloo"],
    "SFT": ["trainer=sft", "data=toy_demonstrations", *_TINY],
    "DPO": ["trainer=dpo", "data=toy_preferences", *_TINY],
    "KTO": ["trainer=kto", "data=toy_judgements", *_TINY],
    "SDFT": [*_TINY, *_TAUGHT],
    "GOLD": [*_TINY, *_TEACHER, "trainer=gold"],
    "IWOPD": [*_TINY, *_TEACHER, "trainer=iw_opd", "data=file", "data.path=talks.jsonl"],
}


def typed(text: str) -> tuple[str, list[str]]:
    """Key and words of `key | BASE word word`; a word without a section is an argument."""
    key, _, words = text.partition(" | ")
    base, *own = words.split()
    arguments = [word if "." in word.partition("=")[0] else f"trainer.args.{word}" for word in own]
    return key.strip(), [*BASES[base], *arguments]


REFUSED = """
generation_batch_size | GRPO generation_batch_size=64 steps_per_generation=1
lr_scheduler_type | SFT lr_scheduler_type=greedy
packing | SFT packing=true max_length=null
eval_packing | SFT eval_packing=true max_length=null data.eval.fraction=0.1 eval_strategy=steps
padding_free | SFT padding_free=true
max_completion_length | GOLD max_length=128
label_smoothing | DPO loss_type=exo_pair
loss_weights | DPO loss_type=[sigmoid,hinge] loss_weights=[1.0]
use_weighting | DPO loss_type=aot use_weighting=true
sync_ref_model | DPO sync_ref_model=true precompute_ref_log_probs=true
sync_ref_model | DPO sync_ref_model=true model.lora.r=4
sync_ref_model | GRPO sync_ref_model=true beta=0
sync_ref_model | RLOO sync_ref_model=true beta=0
train_sampling_strategy | KTO train_sampling_strategy=random
log_completions_hub_repo | GRPO log_completions_hub_repo=me/x log_completions=false
auto_find_batch_size | GRPO auto_find_batch_size=true
auto_find_batch_size | RLOO auto_find_batch_size=true
vllm_importance_sampling_correction | GRPO vllm_importance_sampling_mode=token_truncate \
 vllm_importance_sampling_clip_max=null vllm_importance_sampling_clip_min=null
tf32 | SFT tf32=true
tf32 | GRPO tf32=true
dataloader_prefetch_factor | SFT dataloader_prefetch_factor=2
fp16_full_eval | SFT fp16_full_eval=true bf16_full_eval=true
optim | SFT optim=galore_adamw
metric_for_best_model | SFT save_strategy=best
lr_scheduler_kwargs | SFT lr_scheduler_type=cosine_with_min_lr
lr_scheduler_kwargs | GRPO lr_scheduler_type=cosine_warmup_with_min_lr
"""
# What TRL would do, and a run of ours cannot resume or start; what it would refuse after it has built the trainer.
OURS = """
dataloader_persistent_workers | SFT dataloader_persistent_workers=true
optim_args | SFT optim=sgd optim_args=momentum
beta | DPO beta=0
beta | KTO beta=0
remove_unused_columns | GRPO remove_unused_columns=true
max_length | IWOPD max_length=null
use_teacher_server | SDFT use_teacher_server=true
teacher_model_kind | SDFT teacher_model_kind=ema
"""
# Refusals without a row: some need the model.
OTHERS = """
gradient_checkpointing_kwargs | SFT gradient_checkpointing_kwargs={selective:true} gradient_checkpointing=false
router_aux_loss_coef | GRPO router_aux_loss_coef=0.1
"""
CASES, OWN_CASES, OTHER_CASES = (
    [typed(line) for line in table.strip().splitlines()] for table in (REFUSED, OURS, OTHERS)
)
AT_ONCE = {"padding_free", "tf32", "lr_scheduler_kwargs"}
BUILT = [pytest.param(words, marks=() if key in AT_ONCE else pytest.mark.slow) for key, words in (*CASES, *OTHER_CASES)]


def test_every_row_has_a_case() -> None:
    assert {key for key, _ in (*CASES, *OWN_CASES)} == {one.key for one in REFUSALS}


@pytest.mark.parametrize(("key", "words"), [*CASES, *OWN_CASES])
def test_check_says_it_with_its_key(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, key: str, words: list[str]
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_none")  # an upload without one is a second mistake
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(argument_checks, "_OPTIMIZERS", {})  # nor is a package that is not installed
    talk = [{"role": "user", "content": "1+1="}, {"role": "assistant", "content": "2"}]
    Path("talks.jsonl").write_text((json.dumps({"messages": talk}) + "\n") * 8)
    prepared = prepare(words)
    with pytest.raises(UserError) as caught:
        preflight(prepared.experiment, prepared.composed)
    assert str(caught.value.where).startswith(f"trainer.args.{key} ")
    assert caught.value.hint is not None


@pytest.mark.parametrize(
    ("message", "where", "hint"),
    [
        (
            "packing needs max_length",
            "trainer.args.packing, trainer.args.max_length",
            "'~trainer.args.packing', or '~trainer.args.max_length'",
        ),
        ("`seed`, then `max_steps` and `seed`, but no `other`", "trainer.args.seed, trainer.args.max_steps", None),
        ("no", "trainer.args", None),
    ],
)
def test_which_arguments_a_message_is_about(message: str, where: str, hint: str | None) -> None:
    """Those that were given, else the trainer's own that are quoted."""
    trainer = Trainer(name="sft", trl="SFTTrainer", args={"packing": True, "max_length": None, "optim": "sgd"})
    error = refusal(trainer, ValueError(message))
    assert (error.where, error.got, error.hint) == (where, f"ValueError: {message}", hint)


def test_a_class_that_is_none_of_the_libraries_is_refused_with_its_place(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mistakes that appear when a file is imported. To name an experimental trainer is to agree to it."""
    imports = (
        "import transformers, trl\nclass Mine(trl.SFTTrainer): ...\nclass Watch(transformers.TrainerCallback): ...\n"
    )
    (place / "mine.py").write_text(imports + "class Other: ...\ndef function(): ...\n")
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "0")
    monkeypatch.delenv("TRL_EXPERIMENTAL_SILENCE")

    def section(own: str, *callbacks: str) -> Trainer:
        names = [f"./mine.py:{name}" for name in callbacks]
        return Trainer.model_validate(
            {"name": "sft", "trl": "SFTTrainer", "class": f"./mine.py:{own}", "callbacks": names}
        )

    right = section("Mine", "Watch", "Watch")
    assert trainer_class_of(right).__name__ == "Mine"
    assert [type(one).__name__ for one in callbacks_of(right)] == ["Watch", "Watch"]
    assert os.environ["TRL_EXPERIMENTAL_SILENCE"] == "1"
    for name in ("Other", "function", "Gone"):
        for make, where in ((trainer_class_of, "trainer.class"), (callbacks_of, "trainer.callbacks.1")):
            with pytest.raises(UserError) as caught:
                make(section(name, "Watch", name))
            assert caught.value.where == where
            assert isinstance(caught.value, ConfigError) is (name != "Gone")


TRL, HF, PEFT = (f"/venv/site-packages/{name}/file.py" for name in ("trl", "transformers", "peft"))
BUILDING = (TRL, "__init__")


@pytest.mark.parametrize(
    ("frames", "raises", "where"),
    [
        ([BUILDING], "raise ValueError('no')", "trainer.args"),
        ([BUILDING, (HF, "check")], "raise ImportError('no')", "trainer.args"),
        ([BUILDING, (HF, "f")], "raise ImportError('a quantized model requires x (`pip install x`)')", "model.path"),
        ([BUILDING, (HF, "f")], "raise RuntimeError('You set `ignore_mismatched_sizes`')", "model.path"),
        ([("/usr/lib/dist-packages/accelerate/x.py", "__post_init__")], "raise TypeError('no')", "trainer.args"),
        (
            [BUILDING, (rlhf_cli.__file__, "seam"), (os.__file__, "open"), (HF, "f")],
            "raise ValueError()",
            "trainer.args",
        ),
        ([(HF, "create_scheduler"), ("<string>", "made"), (PEFT, "check")], "raise ValueError('no')", "model.lora"),
        ([BUILDING, (PEFT, "layer")], "[][99999]", "model.lora"),  # a token that the model does not have
        (
            [(TRL, "train"), (HF, "on_train_begin")],
            "assert 0, 'metric_for_best_model'",
            "trainer.args.metric_for_best_model",
        ),
        ([(HF, "train")], "raise ValueError('no')", None),  # builds nothing
        ([("/home/mine.py", "__init__")], "raise ValueError('no')", None),
        ([BUILDING, ("/home/mine.py", "f")], "raise ValueError('no')", None),
        ([BUILDING, ("/home/mine.py", "f"), (HF, "f")], "raise ValueError('no')", None),
        ([BUILDING, ("/venv/site-packages/torch/x.py", "f")], "raise RuntimeError('no')", None),
        ([BUILDING], "int('x')", None),  # no statement of the library's own
        ([BUILDING], "raise KeyError('no')", None),
        ([BUILDING], "raise ConfigError('ours', where='data')", "data"),
    ],
)
def test_a_library_refuses_by_a_statement_of_its_own_while_it_builds(
    monkeypatch: pytest.MonkeyPatch, frames: list[tuple[str, str]], raises: str, where: str | None
) -> None:
    """Functions as if they stood in these files; each calls the next, and the last one raises."""
    call: Callable[..., None] | None = None
    for place, (file, name) in enumerate(reversed(frames)):
        text = f"def {name}():\n    {raises if place == 0 else 'call()'}\n"
        monkeypatch.setitem(linecache.cache, file, (len(text), None, text.splitlines(keepends=True), file))
        made: dict[str, Any] = {"call": call, "ConfigError": ConfigError}
        exec(compile(text, file, "exec"), made)
        call = made[name]
    given = {"call": call, "refusals_named": refusals_named, "trainer": Trainer(name="sft", trl="SFTTrainer")}
    with pytest.raises(UserError if where else Exception) as caught:
        exec(compile("with refusals_named(trainer):\n    call()\n", rlhf_cli.__file__, "exec"), given)
    assert isinstance(caught.value, UserError) is (where is not None)
    assert getattr(caught.value, "where", None) == where


@pytest.mark.whole
@pytest.mark.filterwarnings("ignore:`gradient_checkpointing.*` is deprecated:FutureWarning")
@pytest.mark.parametrize("words", BUILT)
def test_trl_refuses_it_and_the_run_says_so(
    workplace: Path, words: list[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(argument_checks, "REFUSALS", ())
    monkeypatch.setattr(argument_checks, "_OPTIMIZERS", {})  # galore's package is not installed here
    monkeypatch.setenv("HF_TOKEN", "hf_none")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    assert main(["train", *words, "trainer.args.max_steps=1", "run.name=one"]) == 2
    assert " refuses these arguments" in capfd.readouterr().err


@pytest.mark.whole
def test_peft_refuses_it_and_the_run_says_so(workplace: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["+exp=toy_sft", "launch=cpu", "track=none", "run.name=one", "model.lora.target_parameters=[q_proj.weight]"]
    assert main(["train", *words]) == 2
    assert "where:    model.lora" in capfd.readouterr().err


def test_ppo_has_a_reference_where_its_penalty_has_a_coefficient(workplace: Path) -> None:
    """TRL's beta is 0 by default, and the section `kl` decides instead."""
    prepared = prepare([*SMALL, "trainer=ppo", "trainer.args.num_generations=1", "trainer.args.sync_ref_model=true"])
    preflight(prepared.experiment, prepared.composed)
