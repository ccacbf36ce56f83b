"""Supervised fine-tuning, DPO, KTO and reward models, from command to folder: small runs in this very process."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import AutoPeftModelForCausalLM, LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer, LlamaConfig

from rlhf_cli.cli import main
from rlhf_cli.models.scalar_heads import load_reward_model, restore_head_dtype
from rlhf_cli.runs.metrics_file import read_metrics, series
from rlhf_cli.runs.run_folder import RunFolder, read_json
from rlhf_cli.runs.run_status import read_status
from tests.support.tolerances import MODEL
from tests.trainers.small_stages import SMALL_STAGE, STAGES, TINY, Stage, weights


@pytest.mark.parametrize("name", STAGES)
def test_a_finished_run(stage: Stage, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    torch.backends.cuda.enable_cudnn_sdp(True)
    code, folder = stage(name, "trainer.args.save_steps=2")
    assert code == 0
    assert not torch.backends.cuda.cudnn_sdp_enabled(), "its gradients are NaN for some lengths (pytorch #196678)"
    assert (read_status(folder).state, read_status(folder).step) == ("finished", 4)
    assert [path.name for path in sorted(folder.checkpoints.iterdir())] == ["checkpoint-2", "checkpoint-4"]
    events = read_metrics(folder.metrics)
    assert len(series(events, "loss")[1]) == 4
    assert len(series(events, "eval_loss")[1]) == 2
    kind = AutoModelForSequenceClassification if name == "reward" else AutoModelForCausalLM
    model, info = kind.from_pretrained(folder.model, output_loading_info=True)
    assert not info["missing_keys"]
    assert AutoTokenizer.from_pretrained(folder.model).pad_token_id == model.config.pad_token_id == 0
    if name == "reward":
        assert model.config.num_labels == 1
        assert load_reward_model(str(folder.model))[0].score.weight.shape == (1, 16)
    measure = {"sft": "mean token accuracy", "dpo": "accuracies", "kto": "margins", "reward": "accuracy"}[name]
    assert f"│ {measure} " in capsys.readouterr().out


def test_an_adapter_of_a_reward_model_keeps_its_head(stage: Stage) -> None:
    code, folder = stage("reward", "model.lora.r=2")
    assert code == 0
    config = read_json(folder.model / "adapter_config.json")
    assert config["task_type"] == "SEQ_CLS"
    assert "score" in config["modules_to_save"]  # PEFT adds names that other architectures have
    loaded: Any = load_reward_model(str(folder.model))[0]
    head = next(weight for name, weight in weights(folder.model).items() if "score" in name)
    assert torch.equal(loaded.base_model.model.score.modules_to_save["default"].weight, head)


def test_dpo_goes_on_from_an_adapter_with_the_adapter_in_its_reference(stage: Stage) -> None:
    """The first loss is log 2: policy and reference are the same."""
    _, sft = stage("sft", "model.lora.r=2", "trainer.args.max_steps=20")
    code, folder = stage("dpo", model=["model=local", "model.path=run:toy_sft"])
    assert code == 0
    assert series(read_metrics(folder.metrics), "loss")[1][0] == pytest.approx(math.log(2), **MODEL)
    base = AutoPeftModelForCausalLM.from_pretrained(sft.model).merge_and_unload()
    assert AutoModelForCausalLM.from_pretrained(folder.model).config.vocab_size == base.config.vocab_size


def test_a_head_beside_quantised_weights_keeps_its_dtype() -> None:
    """As TRL does it: what is trained is made bfloat16, and the body stays as it was."""
    sizes = {"vocab_size": 8, "hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2}
    config = LlamaConfig(**sizes, num_hidden_layers=1, pad_token_id=0, num_labels=1)
    adapter = LoraConfig(task_type="SEQ_CLS", r=2, target_modules="all-linear", modules_to_save=["score"])
    model = get_peft_model(AutoModelForSequenceClassification.from_config(config), adapter)
    for weight in model.parameters():
        if weight.requires_grad:
            weight.data = weight.data.to(torch.bfloat16)
    ids = torch.tensor([[1, 2, 3]])
    with pytest.raises(RuntimeError, match="dtype"):
        model(input_ids=ids)
    restore_head_dtype(model)
    assert model(input_ids=ids).logits.dtype == torch.float32
    assert {weight.dtype for name, weight in model.named_parameters() if "lora_" in name} == {torch.bfloat16}


@pytest.fixture
def of_rows(workplace: Path) -> Callable[..., tuple[int, RunFolder]]:
    """`of_rows("sft", rows, ...)` trains on a file of these rows under run.name=one."""

    def run(trainer: str, rows: list[dict[str, Any]], *words: str) -> tuple[int, RunFolder]:
        Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        keep = [word for word in SMALL_STAGE if not word.startswith(("data.", "trainer.args.eval"))]
        data = ["data=file", "data.path=rows.jsonl", "run.name=one"]
        code = main(["train", f"trainer={trainer}", "model=tiny", *TINY, *keep, *data, *words])
        return code, RunFolder(workplace / "runs" / trainer / "one")

    return run


@pytest.mark.parametrize(
    ("name", "told", "left"),
    [("sft", "drops 2 of 12 rows and cuts 3 of 12 rows off", 10), ("reward", "drops 5 of 12 rows", 7)],
)
def test_what_max_length_does_is_said(of_rows, capsys: Any, name: str, told: str, left: int) -> None:
    """Of twelve rows two have a prompt of twenty bytes, three an answer of twenty, and ten are allowed."""
    long = "x" * 20
    rows = [{"prompt": long, "a": "1"}] * 2 + [{"prompt": "1+1=", "a": long}] * 3 + [{"prompt": "2", "a": "2"}] * 7
    answer = "completion" if name == "sft" else "chosen"
    more = {} if name == "sft" else {"rejected": "no"}
    made = [{"prompt": row["prompt"], answer: row["a"], **more} for row in rows]
    code, folder = of_rows(name, made, "trainer.args.max_length=10", "trainer.args.eval_strategy=no")
    assert code == 0
    # The longest is of prompt, answer and the end of the text.
    said = f"max_length 10 {told} (shortest {3 if name == 'sft' else 4}, longest 25 tokens)"
    shown, provenance = capsys.readouterr().out, read_json(folder.provenance)
    assert f"warning: {said}" in shown
    assert f"data: {said}"[:70] in shown  # in the panel at the end, where a long line is folded
    assert provenance["num_train_rows"] == left
    assert provenance["lengths"]["train"]["in_words"] == said
    assert said in folder.log.read_text()


@pytest.mark.parametrize("name", ["sft", "dpo", "kto", "orpo", "cpo", "tpo", "reward"])
@pytest.mark.parametrize(
    ("sets", "metric"),
    [("fraction=0.25", "eval_loss"), ("a.path=rows.jsonl data.eval.b.path=rows.jsonl", "eval_b_loss")],
)
def test_an_evaluation(of_rows, name: str, sets: str, metric: str) -> None:
    """The first entry of a batch may be anything: ORPO's and CPO's begin with texts."""
    pair = {"chosen": "2", "rejected": "3"} | ({"reference": "2"} if name == "tpo" else {})
    row = {"sft": {"completion": "2"}, "kto": {"completion": "2", "label": True}}.get(name, pair)
    typed = ("eval_strategy=steps", "eval_steps=1", "max_steps=1", "per_device_eval_batch_size=2")
    steps = [f"trainer.args.{word}" for word in typed]
    rows = [row | {"prompt": f"{n}+1="} for n in range(12)]
    code, folder = of_rows(name, rows, *f"data.eval.{sets}".split(), *steps)
    assert code == 0
    assert any(metric in event for event in read_metrics(folder.metrics))


@pytest.mark.parametrize("name", ["sft", "reward"])
def test_a_max_length_that_leaves_nothing(stage: Stage, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, folder = stage(name, "trainer.args.max_length=2")
    assert code == 2
    hint = capsys.readouterr().err.rpartition("try:")[2].split()[0]
    assert hint.startswith("trainer.args.max_length=")
    assert stage(name, hint, run="two")[0] == 0
    assert "fits all" in json.dumps(read_json(RunFolder(folder.path.parent / "two").provenance)["lengths"])
