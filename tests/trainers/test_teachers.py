"""Distillation: a policy comes nearer to its teacher, goes on after a stop as if it never stopped, and is evaluated."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlhf_cli.cli import main
from rlhf_cli.models.tiny import tiny_model_path
from rlhf_cli.runs.metrics_file import read_metrics, series
from rlhf_cli.runs.run_folder import RunFolder
from tests.support.cut_runs import cut, is_same

pytestmark = pytest.mark.whole

SHAPE = {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "context_tokens": 128, "warm_start": None}
SMALL = [
    *("data=file", "data.path=rows.jsonl", "model=local", "model.path=student", "launch=cpu", "track=none"),
    *("trainer.args.max_steps=4", "trainer.args.per_device_train_batch_size=4", "trainer.args.learning_rate=0.03"),
    *("trainer.args.gradient_accumulation_steps=2", "trainer.args.save_steps=1", "trainer.args.save_total_limit=null"),
    *("trainer.args.gradient_checkpointing=false", "trainer.args.lr_scheduler_type=constant", "run.name=one"),
]
ANSWERS = ["trainer.args.max_completion_length=6"]
OWN = {
    "distillation": ANSWERS,
    "gkd": ["trainer.args.max_new_tokens=6", "trainer.args.max_length=64"],
    "gold": [*ANSWERS, "trainer.args.max_length=64"],
    "iw_opd": [
        *ANSWERS,
        *(f"trainer.args.{word}" for word in ("distillation_objective=jsd", "loss_top_k=0", "max_length=64")),
    ],
    "sdft": [*ANSWERS, "trainer.args.num_generations=2"],
}
Train = Callable[..., RunFolder]


def made(folder: Path, *, seed: int, sharpness: float) -> Path:
    """A random model whose scores are multiplied by `sharpness`, so that some tokens are much likelier than others."""
    path = tiny_model_path({**SHAPE, "seed": seed}, list, lambda step, steps: None)
    model = AutoModelForCausalLM.from_pretrained(path)
    with torch.no_grad():
        model.model.norm.weight.mul_(sharpness)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(path).save_pretrained(folder)
    return folder


@pytest.fixture
def train(workplace: Path) -> Train:
    made(workplace / "student", seed=0, sharpness=1.0)
    made(workplace / "teacher", seed=1, sharpness=20.0)
    talks, rows = list[str](), list[str]()  # one file of both would be read by the first complete set of columns
    for a in range(12):
        messages = [{"role": "user", "content": f"{a}+1="}, {"role": "assistant", "content": f"{a + 1}"}]
        talks.append(json.dumps({"messages": messages}) + "\n")
        rows.append(json.dumps({"prompt": f"{a}+1=", "privileged_context": f"it is {a + 1}"}) + "\n")
    Path("talks.jsonl").write_text("".join(talks))
    Path("rows.jsonl").write_text("".join(rows))

    def run(name: str, *words: str) -> RunFolder:
        data = "rows.jsonl" if name in ("distillation", "sdft") else "talks.jsonl"
        teacher = [] if name == "sdft" else ["teacher.path=teacher"]
        assert main(["train", f"trainer={name}", *SMALL, *teacher, f"data.path={data}", *OWN[name], *words]) == 0
        return RunFolder(workplace / "runs" / name / "one")

    return run


def divergence(student: Path, teacher: Path = Path("teacher")) -> float:
    """KL(student || teacher) in nats per token, where the student continues the prompts with tokens of any kind."""
    tokenizer = AutoTokenizer.from_pretrained(teacher)
    prompts = [[{"role": "user", "content": f"{a}+1="}] for a in range(10)]
    asked = torch.tensor([tokenizer.apply_chat_template(p, add_generation_prompt=True).input_ids for p in prompts])
    said = torch.randint(3, len(tokenizer), (10, 8), generator=torch.Generator().manual_seed(0))
    ids = torch.cat([asked, said], dim=1)
    with torch.no_grad():
        mine, theirs = (
            AutoModelForCausalLM.from_pretrained(path)(ids).logits[:, asked.shape[1] - 1 :].double().log_softmax(-1)
            for path in (student, teacher)
        )
    return float((mine.exp() * (mine - theirs)).sum(-1).mean())


@pytest.mark.parametrize("name", ["distillation", "gkd", "gold", "iw_opd"])
def test_a_policy_comes_nearer_to_its_teacher_and_resumes_exactly(train: Train, workplace: Path, name: str) -> None:
    folder = train(name)
    losses = series(read_metrics(folder.metrics), "loss")[1]
    assert len(losses) == 4
    assert divergence(folder.model) < 0.95 * divergence(Path("student"))
    stopped = cut(folder, 2, workplace / "cut")  # in the second epoch: each has one step and a half
    assert main(["resume", str(stopped.path)]) == 0
    assert is_same(stopped, folder)


def test_gradient_accumulation_does_not_change_the_loss(train: Train) -> None:
    """On the answers of its rows: TRL counts the tokens of a window once for each of its micro-batches."""
    found = {}
    for size, accumulation in ((8, 1), (4, 2), (2, 4)):
        typed = (f"gradient_accumulation_steps={accumulation}", f"per_device_train_batch_size={size}")
        args = [f"trainer.args.{word}" for word in (*typed, "max_steps=1", "lmbda=0")]
        folder = train("gold", *args, f"run.name=of_{size}")
        (event,) = [one for one in read_metrics(folder.path.with_name(f"of_{size}") / "metrics.jsonl") if "loss" in one]
        found[size] = (event["loss"], event["grad_norm"])
    assert all(one == pytest.approx(found[8], rel=1e-4) for one in found.values())


LONGER = ("data.path=many.jsonl", "trainer.args.gradient_accumulation_steps=1", "trainer.args.save_strategy=no")


def test_iw_opd_comes_nearer_to_its_teacher_by_its_own_loss(train: Train) -> None:
    """Its loss is no distance. Its gradient is a sample of the divergence's, so small batches are lost in noise."""
    Path("many.jsonl").write_text(Path("talks.jsonl").read_text() * 11)
    typed = ("distillation_objective=iw_opd", "loss_top_k=1", "max_steps=16", "per_device_train_batch_size=128")
    words = [f"trainer.args.{word}" for word in (*typed, "learning_rate=0.02")]
    assert divergence(train("iw_opd", *LONGER, *words).model) < 0.95 * divergence(Path("student"))


def hint_missed(student: Path, teacher: Path = Path("teacher")) -> float:
    """KL(teacher who reads the hint || student who does not) in nats per token, for answers of any kind."""
    tokenizer, found = AutoTokenizer.from_pretrained(teacher), list[float]()
    said = torch.randint(3, len(tokenizer), (12, 6), generator=torch.Generator().manual_seed(0))
    models = [AutoModelForCausalLM.from_pretrained(path) for path in (teacher, student)]
    for a, answer in enumerate(said.tolist()):
        asked = [tokenizer(text).input_ids for text in (f"{a}+1=\n\nit is {a + 1}", f"{a}+1=")]
        with torch.no_grad():
            theirs, mine = (
                model(torch.tensor([ids + answer])).logits[0, len(ids) - 1 :].double().log_softmax(-1)
                for model, ids in zip(models, asked, strict=True)
            )
        found.append(float((theirs.exp() * (theirs - mine)).sum(-1).mean()))
    return sum(found) / len(found)


def test_sdft_learns_by_its_own_loss_what_the_hint_says(train: Train) -> None:
    """The sharp model's answers depend on what it read: without the hint it learns to answer as if it had read it."""
    Path("many.jsonl").write_text(Path("rows.jsonl").read_text() * 2)
    steps = ("trainer.args.max_steps=60", "trainer.args.per_device_train_batch_size=16")
    own = ("model.path=teacher", "trainer.args.learning_rate=0.002", "trainer.args.num_generations=8")
    assert hint_missed(train("sdft", *LONGER, *own, *steps).model) < 0.8 * hint_missed(Path("teacher"))


@pytest.mark.parametrize("name", ["distillation", "sdft"])
def test_negative_control_without_steps_the_distance_stays(train: Train, name: str) -> None:
    folder = train(name, "trainer.args.learning_rate=0", "trainer.args.max_steps=1")
    assert divergence(folder.model) == divergence(Path("student"))
    assert hint_missed(folder.model) == hint_missed(Path("student"))


@pytest.mark.parametrize("step", [1, 2])  # within a round of two steps, and at its end
def test_a_policy_that_teaches_itself(train: Train, workplace: Path, step: int) -> None:
    """Its teacher is its initial self with a hint; on random weights the hint says little, so only the step counts."""
    folder = train("sdft", "trainer.args.gradient_accumulation_steps=1", "trainer.args.steps_per_generation=2")
    assert all(event["grad_norm"] > 0 for event in read_metrics(folder.metrics) if "grad_norm" in event)
    stopped = cut(folder, step, workplace / "cut")
    assert main(["resume", str(stopped.path)]) == 0
    assert is_same(stopped, folder)


def test_such_a_run_is_evaluated(train: Train, capsys: pytest.CaptureFixture[str]) -> None:
    folder = train("distillation", "trainer.args.max_steps=1")
    capsys.readouterr()
    assert main(["eval", str(folder.path), "--rows", "4", "--json", "trainer.args.max_completion_length=4"]) == 0
    assert json.loads(capsys.readouterr().out)


def test_a_teacher_may_be_an_adapter(train: Train, workplace: Path) -> None:
    """Its folder is merged: what transformers would load from it is the model without the adapter."""
    adapter = train("sdft", "model.lora.r=2", "trainer.args.learning_rate=0.5", "trainer.args.max_steps=1").model
    assert (adapter / "adapter_config.json").is_file()
    words = [f"teacher.path={adapter}", "run.name=two", "trainer.args.max_steps=1"]
    assert main(["train", "trainer=distillation", *SMALL, *ANSWERS, *words]) == 0
