"""`check` and the run name the key of a value that TRL or transformers refuses.

The expectation is TRL's own: with our table emptied, the same words reach TRL's constructor, which refuses them too.
"""

from __future__ import annotations

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
from rlhf_cli.plan.checks import argument_checks
from rlhf_cli.plan.preflight import preflight
from rlhf_cli.plan.prepare import prepare
from rlhf_cli.tables.trl_values import REFUSALS
from rlhf_cli.trainers.assemble.trl_config import callbacks_of, refusal, refusals_named, trainer_class_of
from tests.support.small_runs import SMALL

TINY = ["model=tiny_untrained", "model.build.hidden_size=16", "model.build.num_layers=1", "launch=cpu", "track=none"]
SFT = ["trainer=sft", "data=toy_demonstrations", *TINY]
DPO = ["trainer=dpo", "data=toy_preferences", *TINY]
KTO = ["trainer=kto", "data=toy_judgements", *TINY]
_A = "trainer.args."
_TAUGHT = [*TINY, "trainer=sdft", "data=toy_demonstrations", "data.rename.privileged_context=completion"]
REFUSED: dict[str, list[list[str]]] = {
    "generation_batch_size": [[*SMALL, f"{_A}generation_batch_size=64", f"{_A}steps_per_generation=1"]],
    "lr_scheduler_type": [[*SFT, f"{_A}lr_scheduler_type=greedy"]],
    "packing": [[*SFT, f"{_A}packing=true", f"{_A}max_length=null"]],
    "eval_packing": [
        [*SFT, f"{_A}eval_packing=true", f"{_A}max_length=null", "data.eval.fraction=0.1", f"{_A}eval_strategy=steps"]
    ],
    "padding_free": [[*SFT, f"{_A}padding_free=true"]],
    "label_smoothing": [[*DPO, f"{_A}loss_type=exo_pair"]],
    "loss_weights": [[*DPO, f"{_A}loss_type=[sigmoid, hinge]", f"{_A}loss_weights=[1.0]"]],
    "use_weighting": [[*DPO, f"{_A}loss_type=aot", f"{_A}use_weighting=true"]],
    "sync_ref_model": [
        [*DPO, f"{_A}sync_ref_model=true", f"{_A}precompute_ref_log_probs=true"],
        [*DPO, f"{_A}sync_ref_model=true", "model.lora.r=4"],
        [*SMALL, f"{_A}sync_ref_model=true", f"{_A}beta=0"],
        [*SMALL, "trainer=rloo", f"{_A}sync_ref_model=true", f"{_A}beta=0"],
    ],
    "train_sampling_strategy": [[*KTO, f"{_A}train_sampling_strategy=random"]],
    "log_completions_hub_repo": [[*SMALL, f"{_A}log_completions_hub_repo=me/x", f"{_A}log_completions=false"]],
    "auto_find_batch_size": [
        [*SMALL, f"{_A}auto_find_batch_size=true"],
        [*SMALL, "trainer=rloo", f"{_A}auto_find_batch_size=true"],
    ],
    "vllm_importance_sampling_correction": [
        [
            *(*SMALL, f"{_A}vllm_importance_sampling_mode=token_truncate"),
            *(f"{_A}vllm_importance_sampling_clip_max=null", f"{_A}vllm_importance_sampling_clip_min=null"),
        ]
    ],
    "tf32": [[*SFT, f"{_A}tf32=true"], [*SMALL, f"{_A}tf32=true"]],
    "dataloader_prefetch_factor": [[*SFT, f"{_A}dataloader_prefetch_factor=2"]],
    "fp16_full_eval": [[*SFT, f"{_A}fp16_full_eval=true", f"{_A}bf16_full_eval=true"]],
    "optim": [[*SFT, f"{_A}optim=galore_adamw"]],
    "metric_for_best_model": [[*SFT, f"{_A}save_strategy=best"]],
    "lr_scheduler_kwargs": [
        [*SFT, f"{_A}lr_scheduler_type=cosine_with_min_lr"],
        [*SMALL, f"{_A}lr_scheduler_type=cosine_warmup_with_min_lr"],
    ],
}
OURS: dict[str, list[list[str]]] = {
    "remove_unused_columns": [[*SMALL, f"{_A}remove_unused_columns=true"]],
    "use_teacher_server": [[*_TAUGHT, f"{_A}use_teacher_server=true"]],
    "teacher_model_kind": [[*_TAUGHT, f"{_A}teacher_model_kind=ema"]],
}
"""What TRL would do, and a run of ours cannot resume or start."""
CASES = [(key, words) for key, cases in REFUSED.items() for words in cases]
OTHERS = [
    [*SFT, f"{_A}gradient_checkpointing_kwargs={{selective: true}}", f"{_A}gradient_checkpointing=false"],
    [*SMALL, f"{_A}router_aux_loss_coef=0.1"],
]
"""Refusals without a row: some need the model."""
AT_ONCE = {"padding_free", "tf32", "lr_scheduler_kwargs"}
BUILT = [
    *(pytest.param(words, marks=() if key in AT_ONCE else pytest.mark.slow) for key, words in CASES),
    *(pytest.param(words, marks=pytest.mark.slow) for words in OTHERS),
]


def test_every_row_has_a_case() -> None:
    assert set(REFUSED) | set(OURS) == {one.key for one in REFUSALS}


@pytest.mark.parametrize(("key", "words"), [*CASES, *((key, *cases) for key, cases in OURS.items())])
def test_check_says_it_with_its_key(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, key: str, words: list[str]
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_none")  # an upload without one is a second mistake
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(argument_checks, "_OPTIMIZERS", {})  # nor is a package that is not installed
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
        (
            [BUILDING, (HF, "f")],
            "raise ImportError('a GPTQ quantized model requires x (`pip install x`)')",
            "model.path",
        ),
        ([BUILDING, (HF, "f")], "raise RuntimeError('You set `ignore_mismatched_sizes`')", "model.path"),
        ([("/usr/lib/dist-packages/accelerate/x.py", "__post_init__")], "raise TypeError('no')", "trainer.args"),
        (
            [BUILDING, (rlhf_cli.__file__, "seam"), (os.__file__, "open"), (HF, "f")],
            "raise ValueError()",
            "trainer.args",
        ),
        ([(HF, "create_scheduler"), ("<string>", "made"), (PEFT, "check")], "raise ValueError('no')", "model.lora"),
        ([BUILDING, (PEFT, "layer")], "[][99999]", "model.lora"),  # a token that the model does not have
        ([(TRL, "train"), (HF, "on_train_begin")], "assert 0, 'metric_for_best_model'", f"{_A}metric_for_best_model"),
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
    said = capfd.readouterr().err
    assert "Traceback" not in said
    assert " refuses these arguments" in said


@pytest.mark.whole
def test_peft_refuses_it_and_the_run_says_so(workplace: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["+exp=toy_sft", "launch=cpu", "track=none", "run.name=one", "model.lora.target_parameters=[q_proj.weight]"]
    assert main(["train", *words]) == 2
    said = capfd.readouterr().err
    assert "Traceback" not in said
    assert "where:    model.lora" in said


@pytest.mark.parametrize("token", ["eos_token", "pad_token"])
def test_a_token_that_the_vocabulary_lacks(workplace: Path, token: str) -> None:
    prepared = prepare([*SFT, f"trainer.args.{token}=NONE"])
    with pytest.raises(UserError) as caught:
        preflight(prepared.experiment, prepared.composed)
    assert caught.value.where == f"trainer.args.{token} (command line)"
    right = prepare([*SFT, f"trainer.args.{token}='<pad>'"])
    preflight(right.experiment, right.composed)


def test_ppo_has_a_reference_where_its_penalty_has_a_coefficient(workplace: Path) -> None:
    """TRL's beta is 0 by default, and the section `kl` decides instead."""
    prepared = prepare([*SMALL, "trainer=ppo", "trainer.args.num_generations=1", "trainer.args.sync_ref_model=true"])
    preflight(prepared.experiment, prepared.composed)


def test_an_error_of_the_user_s_class_stays_a_traceback(workplace: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (workplace / "mine.py").write_text(
        "from trl import GRPOTrainer\nfrom transformers import AutoModel\n\n\nclass Mine(GRPOTrainer):\n"
        "    def __init__(self, *args, **named):\n        AutoModel()  # a library that was given something wrong\n"
    )
    assert main(["train", *SMALL, "trainer.class=./mine.py:Mine", "run.name=one"]) == 1
    assert "mine.py" in capfd.readouterr().err
