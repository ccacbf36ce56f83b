"""Images reach TRL's trainers, rewards, evaluations and files; the numbers are those of TRL called by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import trl
from datasets import Dataset, Image
from safetensors.torch import load_file

from rlhf_cli.analysis.diagnosis.run_diagnosis import diagnose
from rlhf_cli.cli import main
from rlhf_cli.runs.metrics_file import read_metrics, series
from rlhf_cli.runs.run_folder import RunFolder
from tests.support.cut_runs import goes_on_as, table
from tests.support.tiny_images import REWARD, rows_in, write_model

pytestmark = pytest.mark.whole

OF_ROWS = {"max_steps": 2, "per_device_train_batch_size": 4, "learning_rate": 0.01, "logging_steps": 1}
OF_ROWS["gradient_checkpointing"] = False
ARGS = OF_ROWS | {"max_steps": 4, "num_generations": 2, "steps_per_generation": 2, "max_completion_length": 4}
CHOSEN = [{"role": "assistant", "content": "red"}]
RUNS: dict[str, tuple[dict[str, Any], dict[str, object]]] = {
    "grpo": (ARGS, {}),
    "rloo": (ARGS | {"max_steps": 2}, {}),
    "sft": (OF_ROWS, {"completion": CHOSEN}),
    "dpo": (OF_ROWS | {"max_steps": 1}, {"chosen": CHOSEN, "rejected": [{"role": "assistant", "content": "no"}]}),
}
WORDS = ["model=local", "model.path=vlm", "data=file", "launch=cpu", "track=none"]
SAVES = ["save_steps=1", "save_total_limit=null", "eval_strategy=steps", "eval_steps=4"]


def words(trainer: str, name: str) -> list[str]:
    args, _ = RUNS[trainer]
    rewarded = ["rewards.sees.fn=./grpo/rewards.py:sees"] if "num_generations" in args else []
    typed = [f"trainer.args.{key}={value}" for key, value in args.items()]
    return [f"trainer={trainer}", f"data.path={trainer}/rows.jsonl", f"run.name={name}", *WORDS, *rewarded, *typed]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, model_cache: Path) -> Path:
    """A folder with a model, rows for each trainer, and a run of GRPO that saves and evaluates."""
    folder = tmp_path_factory.mktemp("images")
    write_model(folder / "vlm")
    for trainer, (_, columns) in RUNS.items():
        rows_in(folder / trainer, **columns)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("RLHF_CACHE", str(model_cache))
        saves = [f"trainer.args.{word}" for word in SAVES]
        assert main(["train", *words("grpo", "one"), "data.eval.path=rloo/rows.jsonl", *saves]) == 0
    return folder


@pytest.fixture
def grpo(place: Path, model_cache: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    monkeypatch.chdir(place)
    monkeypatch.setenv("RLHF_CACHE", str(model_cache))
    return RunFolder(place / "runs" / "grpo" / "one")


def by_hand(trainer: str, place: Path) -> list[dict[str, float]]:
    """What a user of plain TRL writes for such a run."""
    args, columns = RUNS[trainer]
    rows = [row | {"image": str(place / trainer / row["image"])} for row in rows_in(place / trainer, **columns)]
    made: dict[str, Any] = {"train_dataset": Dataset.from_list(rows).cast_column("image", Image())}
    plain = {"save_strategy": "no", "report_to": "none", "use_cpu": True, "bf16": False, "disable_tqdm": True}
    plain |= {"output_dir": str(place / "by_hand"), "seed": 0, "model_init_kwargs": {"dtype": "auto"}}
    if trainer in ("grpo", "rloo"):
        exec(REWARD, space := dict[str, Any]())
        made["reward_funcs"] = space["sees"]
    config = getattr(trl, f"{trainer.upper()}Config")(**args, **plain)
    trained = getattr(trl, f"{trainer.upper()}Trainer")(model=str(place / "vlm"), args=config, **made)
    trained.train()
    return [event for event in trained.state.log_history if "loss" in event]


@pytest.mark.parametrize("trainer", RUNS)
def test_losses_are_trl_s(grpo: RunFolder, place: Path, trainer: str) -> None:
    folder = RunFolder(place / "runs" / trainer / "one")
    if trainer != "grpo":
        assert main(["train", *words(trainer, "one")]) == 0
    plain, ours = by_hand(trainer, place), [event for event in read_metrics(folder.metrics) if "loss" in event]
    for name in ("loss", "grad_norm"):
        assert series(ours, name)[1] == [event[name] for event in plain], name
    before, after = (load_file(path / "model.safetensors") for path in (place / "vlm", folder.model))
    assert any("vision" in name and not torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("step", [2, 3])
def test_resumed_it_is_the_same_run(grpo: RunFolder, tmp_path: Path, step: int) -> None:
    goes_on_as(grpo, step, tmp_path / "cut")
    assert str(table(RunFolder(tmp_path / "cut"), 3)) == str(table(grpo, 3))


def test_what_a_run_writes(grpo: RunFolder) -> None:
    """The table names the files, and the log and `why` say what is off."""
    stored = table(grpo, 3)
    assert {Path(name).parent.name for name in stored["image"]} == {"seen"}
    assert stored["prompt"][0][0]["content"][0]["type"] == "image"
    assert {"packing of rows", "live generation", "the check of prompt lengths"} <= set(diagnose(grpo).slow_paths)
    assert "live generation is off: the model reads images" in grpo.log.read_text(encoding="utf-8")


def test_evaluations(grpo: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    """The evaluation in training, `eval` and `generate` see the images."""
    assert main(["eval", str(grpo.path), "--samples", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["parts"]["greedy"]["rewards"]["sees"]["raw"]["mean"] >= 1
    of_training, of_run = sorted(grpo.path.rglob("*.completions.jsonl"), key=lambda file: "training" not in file.parts)
    read = [[json.loads(line) for line in file.read_text().splitlines()] for file in (of_training, of_run)]
    greedy = [{row["image"]: row["completion"] for row in rows if row["part"] == "greedy"} for rows in read]
    assert greedy[0] == greedy[1]
    assert len(greedy[0]) == 8
    words = ["--limit", "4", "-n", "4", "--out", "made", "trainer.args.max_completion_length=60"]
    assert main(["generate", str(grpo.path), *words]) == 0
    rows = [json.loads(line) for file in Path("made").glob("*.jsonl") for line in file.read_text().splitlines()]
    assert all(Path(row["image"]).is_file() for row in rows)


def test_the_run_is_a_model(grpo: RunFolder, tmp_path: Path) -> None:
    """It is exported with its processor, and is the base of an adapter that a third run goes on from."""
    adapter = [f"model.path={grpo.path}/model", "model.lora.r=2", "trainer.args.max_steps=1"]
    assert main(["train", *words("grpo", "adapter"), *adapter]) == 0
    third = ["model.path=runs/grpo/adapter/model", "trainer.args.max_steps=1"]
    assert main(["train", *words("grpo", "third"), *third]) == 0
    for name in ("one", "adapter"):
        assert main(["export", f"runs/grpo/{name}", "--out", str(tmp_path / name)]) == 0
        assert {"processor_config.json", "model.safetensors"} <= {file.name for file in (tmp_path / name).iterdir()}


def test_a_model_that_reads_images_drops_long_texts(grpo: RunFolder, tmp_path: Path) -> None:
    """Rows without images are counted as for any model: 2048 tokens less 4 of the answer, and 18 are the template."""
    prompts = [[{"role": "user", "content": "x" * length}] for length in (5, 6, 7, 2026, 2027)]
    (rows := tmp_path / "rows.jsonl").write_text("".join(json.dumps({"prompt": one}) + "\n" for one in prompts))
    typed = ["~rewards.sees", "reward@rewards.short=brevity", f"data.path={rows}", "data.overlong_prompts=drop"]
    assert main(["train", *words("rloo", "long"), *typed, "trainer.args.max_steps=1"]) == 0
    assert "data: 1 of 5 prompts have more than 2044 tokens" in Path("runs/rloo/long/log.txt").read_text()
