"""The model card, read by the hub's own reader: rewards, data, evaluations, provenance, no secrets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub import ModelCard

from rlhf_cli.errors import ModelError, RunError
from rlhf_cli.project import exported_folder
from rlhf_cli.runs.reward_records import BY_REWARDS_OF, write_training_format
from rlhf_cli.runs.run_folder import EDITED_CONFIG, RunFolder, read_json
from tests.project.finished_runs import exported, finished_run, random_model

SECRET = "hf_planted0123456789abcdefghij"


QWEN = {"path": "Qwen/Qwen3-0.6B", "trust_remote_code": False}


def estimate(mean: float) -> dict[str, object]:
    return {"mean": mean, "low": mean - 0.05, "high": mean + 0.05, "count": 40}


def evaluation(name: str, path: Path, correct: float, time: float = 1e10, **more: object) -> str:
    """Return the file that `rlhf eval` writes for a policy."""
    raw = {kind: estimate(correct) for kind in ("raw", "effective", "weighted")}
    tokens = {**estimate(3.0), "max": 9}
    greedy = {"rewards": {"correct": raw}, "total": estimate(correct), "truncated": estimate(0.1), "tokens": tokens}
    head = {"kind": "policy", "name": name, "model": "mine", "path": str(path), "data": "held out", "time": time}
    rest = {"rows": 40, "parts": {"greedy": greedy}, "attempts": {}, "shown": [], "warnings": []}
    return json.dumps({**head, **rest, **more})


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return finished_run(tmp_path / "work" / "run", random_model("CAUSAL_LM"))


def rows_of(card: str, first: str) -> list[list[str]]:
    lines = card.split(f"| {first} |", 1)[1].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_tables_of_the_card(run: RunFolder, tmp_path: Path) -> None:
    run.provenance.write_text(json.dumps({**read_json(run.provenance), "sha256": {"config": "another"}}))
    assert exported(run, tmp_path / "out").notes[-1:] == [f"The run's {EDITED_CONFIG}."]
    card = (tmp_path / "out" / "README.md").read_text()
    assert rows_of(card, "reward") == [
        ["correct", "rlhf_cli.rewards.toy:sums_correct", "1.0", ""],
        ["brief", "./rewards.py:brief", "0.25", "correct >= 1, correct <= 2"],
    ]
    for said in (
        *("0123456789abcdef with uncommitted changes", "torch 2.13.0", "rlhf train +exp=mine", "GRPOTrainer"),
        *("for 3 steps with seed 7", "Data: ./data/sums.jsonl."),
    ):
        assert said in card
    assert "math-verify" not in card  # not installed
    assert rows_of(card, "rows of `rlhf eval`") == [["these weights were not evaluated", "", "", "", ""]]


def test_the_metadata_for_the_hub(tmp_path: Path) -> None:
    hub = {"path": "openai/gsm8k", "subset": "main", "split": "train"}
    data = {"path": None, "mix": {"hub": hub, "toy": {"world": "toy_sums"}}}
    run = finished_run(tmp_path / "run", random_model("CAUSAL_LM"), data=data, model=QWEN)
    (run.path / "eval").mkdir()
    for name, text in {
        "held_out": evaluation("held_out", run.model, 0.75),
        "other": evaluation("other", run.model, 0.99, model=f"theirs{BY_REWARDS_OF}mine"),  # of another model
        # The run was in another place when it was evaluated.
        "seen": evaluation("seen", tmp_path / "elsewhere", 0.75, trained_on=4),
        "cut": evaluation("cut", run.model, 0.98)[:80],
        "old": evaluation("old", run.model, 0.97, time=1.0),
    }.items():
        (run.path / "eval" / f"{name}.json").write_text(text)
    made = exported(run, tmp_path / "out")
    card = ModelCard.load(tmp_path / "out" / "README.md")
    found = card.data.to_dict()
    assert (found["base_model"], found["datasets"]) == ("Qwen/Qwen3-0.6B", ["openai/gsm8k"])
    assert (found["library_name"], found["pipeline_tag"]) == ("transformers", "text-generation")
    rows = rows_of(card.text, "rows of `rlhf eval`")
    assert ["held_out", "greedy/correct", "0.75", "0.7 to 0.8", "40"] in rows
    assert next(row[0] for row in rows if row[0].startswith("seen")) == "seen (4 of 40 prompts trained on)"
    assert not {"0.99", "0.97"} & set(card.text.split())
    assert "Data: openai/gsm8k, embedded world toy_sums." in card.text
    told = ["The evaluation cut.json could not be read.", "The evaluation old.json is of older weights."]
    assert made.notes == told


CHAT = (
    "{% for one in messages %}[{{ one.role }}]{{ one.content }}{% endfor %}{% if add_generation_prompt %}[a]{% endif %}"
)


@pytest.mark.parametrize("kind", ["CAUSAL_LM", "SEQ_CLS"])
def test_the_code_for_a_chat_model_uses_its_template(kind: str, tmp_path: Path, monkeypatch, capsys) -> None:
    run = finished_run(tmp_path / "run", random_model(kind))
    (run.model / "chat_template.jinja").write_text(CHAT)
    write_training_format(run.model, conversations=True)
    exported(run, tmp_path / "out")
    code = (tmp_path / "out" / "README.md").read_text().split("```python\n")[1].split("```")[0]
    monkeypatch.chdir(tmp_path)
    ran: dict[str, Any] = {}
    exec(code, ran)
    text = ran["tokenizer"].decode(ran["inputs"]["input_ids"][0])
    asked = "[user]What is the capital of France?"
    assert text == asked + ("[a]" if kind == "CAUSAL_LM" else "[assistant]Paris.")


def test_the_base_of_a_chain_of_runs_is_on_the_hub(tmp_path: Path) -> None:
    first = finished_run(tmp_path / "sft" / "one", random_model("CAUSAL_LM"), model=QWEN)
    of_first = {**QWEN, "path": str(first.model)}
    exported(finished_run(tmp_path / "rl" / "two", random_model("CAUSAL_LM"), model=of_first), tmp_path / "out")
    card = ModelCard.load(tmp_path / "out" / "README.md")
    assert card.data.base_model == "Qwen/Qwen3-0.6B"
    assert "the model of the run sft/one" in card.text


def test_no_secrets_or_local_paths_are_exported(run: RunFolder, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", "judgekey-planted88")
    monkeypatch.setenv("HOME", str(tmp_path))
    config: Any = run.read_config()
    args = {"api_key": "judgekey-planted88", "url": f"https://me:judgepassw99@x.example?token={SECRET}"}
    config["rewards"]["judged"] = {"fn": "mine:judged", "args": args, "weight": 1.0}
    config["trainer"]["args"]["hub_token"] = SECRET
    run.config.write_text(yaml.safe_dump(config))
    exported(run, tmp_path / "out")
    everything = b"".join(path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file())
    for secret in (SECRET, "judgekey", "judgepassw99", str(tmp_path), "a-machine-of-ours", "/home/user-of-the-test"):
        assert secret.encode() not in everything, secret
    assert b"judgekey" in run.config.read_bytes(), "negative control: the source has a secret"
    written = yaml.safe_load((tmp_path / "out" / "training_config.yaml").read_text())
    assert written["data"]["path"] == "./data/sums.jsonl"


def test_an_interrupted_export_leaves_no_files(run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*args: object, **named: object) -> str:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(exported_folder, "model_card", interrupt)
        with pytest.raises(KeyboardInterrupt):
            exported(run, tmp_path / "out")
    with monkeypatch.context() as patch:
        patch.setattr(exported_folder, "_copy", lambda source, folder, patterns: 1)
        patch.setattr(exported_folder, "clean_configs", lambda folder, kind: None)
        with pytest.raises(ModelError, match="incomplete"):
            exported(run, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["work"]
    exported(run, tmp_path / "out")
    with pytest.raises(RunError):
        exported(run, tmp_path / "out")
