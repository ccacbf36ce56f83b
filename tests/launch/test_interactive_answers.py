"""`rlhf eval` and `generate` answer as the run did in training: with its tools, or its rollout function."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest

from rlhf_cli.cli import main
from rlhf_cli.errors import UserError
from rlhf_cli.evaluation.score_completions import EndOfRun
from rlhf_cli.launch.interactive_answers import _only_evaluated, interactive_answers
from rlhf_cli.plan.prepare import prepare
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.trainers.assemble.trl_config import trl_config

pytestmark = pytest.mark.whole

SMALL = [
    *("run.name=one", "track=none", "expect=null", "trainer.args.max_steps=2", "trainer.args.save_strategy=no"),
    *("trainer.args.per_device_train_batch_size=8", "trainer.args.learning_rate=0", "launch=cpu"),
    *("data.eval.fraction=0.01", "trainer.args.eval_strategy=steps", "trainer.args.eval_steps=2"),
    *("trainer.args.num_generations_eval=2", "trainer.args.per_device_eval_batch_size=20"),
]
EXPERIMENTS = {
    "tools": ("toy_calculator", "trainer.args.num_generations=4"),
    "tools and a critic": ("toy_calculator", "trainer=ppo", "trainer.args.num_generations=1"),
    "a rollout function": ("toy_staged", "trainer.args.num_generations=4"),
}


def rows(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.mark.parametrize("kind", EXPERIMENTS)
def test_a_trained_policy_answers_as_it_did_in_training(kind: str, workplace: Path) -> None:
    """The greedy answers to the held-out prompts are those of the last evaluation of the training."""
    name, *words = EXPERIMENTS[kind]
    assert main(["train", f"+exp={name}", *SMALL, *words]) == 0
    run = workplace / "runs" / name / "one"
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always", FutureWarning)
        assert main(["eval", str(run), "--samples", "2"]) == 0
        assert main(["generate", str(run), "-n", "2", "--limit", "3"]) == 0
    assert [str(warning.message) for warning in warned] == []  # of transformers' and TRL's own calls

    in_training = rows(run / "eval" / "training" / "step-2.completions.jsonl")
    afterwards = rows(run / "eval" / "held_out_2_samples.completions.jsonl")
    greedy, again = (  # TRL shuffles the rows of an evaluation, `rlhf eval` writes them in their order
        sorted((row for row in found if row["part"] == "greedy"), key=lambda row: str(row["prompt"]))
        for found in (in_training, afterwards)
    )
    assert len(greedy) >= 20
    for key in ("prompt", "completion", "rewards", "total"):
        assert [row[key] for row in again] == [row[key] for row in greedy]
    found = json.loads((run / "eval" / "held_out_2_samples.json").read_text())
    assert found["trained_on"] == 0  # the rows of a prompt are all held out, or none

    generated = rows(run / "generated" / "completions.jsonl")
    assert len(generated) == 6
    if kind != "a rollout function":
        assert any(message["role"] == "tool" for row in [*greedy, *generated] for message in row["completion"])


@pytest.mark.parametrize(
    ("word", "where"),
    [
        ("rewards.mine.fn=./gone.py:f", "rewards.mine.fn"),
        ("rewards.mine.fn=rlhf_cli.rewards.code:code_passes_tests", "data"),
    ],
)
def test_a_reward_that_cannot_be_called_is_refused_before_sampling(
    word: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlhf_cli.trainers.assemble.trainer.assemble", lambda *_, **__: pytest.fail("it would sample"))
    experiment = prepare(["+exp=toy_calculator", word]).experiment
    with pytest.raises(UserError) as refused:
        interactive_answers(Path("model"), experiment, [{"prompt": "1+1=", "answer": 2}], 2, 8, EndOfRun())
    assert where in [error.where for error in getattr(refused.value, "problems", [refused.value])]


@pytest.mark.parametrize(("named", "kept"), [("owner/m", ("v1", "owner/tok")), ("run/model", (None, None))])
def test_the_named_model_has_the_revision_and_the_tokenizer_that_were_named(named: str, kept: object) -> None:
    words = ["model=local", "model.path=owner/m", "model.revision=v1", "model.tokenizer=owner/tok"]
    model = _only_evaluated(prepare(["+exp=toy_calculator", *words]).experiment, Path(named), 1, 1).model
    assert (model.path, (model.revision, model.tokenizer)) == (named, kept)


EVALUATES = ["data.eval.fraction=0.1", "trainer.args.eval_strategy=steps", "trainer.args.eval_steps=4"]


@pytest.mark.parametrize(
    "given",
    [
        ["sync_ref_model=true", "beta=0.04"],
        ["lr_scheduler_type=reduce_lr_on_plateau", "lr_scheduler_kwargs={patience: 3}"],
        ["lr_scheduler_type=greedy"],
        ["load_best_model_at_end=true", "metric_for_best_model=greedy/total", "save_steps=4"],
        ["save_strategy=best", "metric_for_best_model=greedy/total"],
    ],
)
def test_settings_that_only_a_training_reads_are_left_out(given: list[str], tmp_path: Path) -> None:
    words = [*EVALUATES, "launch=cpu", "launch.processes=2", "truncation=exclude"]
    experiment = prepare(["+exp=toy_calculator", *words, *(f"trainer.args.{word}" for word in given)]).experiment
    only = _only_evaluated(experiment, Path("run/model"), 3, 8)
    assert (only.launch.processes, only.truncation.policy) == (1, "none")
    args: Any = trl_config(only, RunFolder(tmp_path))
    assert (args.beta, args.sync_ref_model, args.load_best_model_at_end) == (0.0, False, False)
    assert (args.num_generations_eval, args.per_device_eval_batch_size) == (3, 6)  # of 8 completions, whole groups


def test_messages_keep_their_own_keys(workplace: Path) -> None:
    """Two calls have arguments of other types, and a message without calls has no key for them."""
    prompts: list[Any] = []
    for arguments in ({"a": 1, "b": 2}, {"a": "one"}):
        call = {"type": "function", "function": {"name": "add", "arguments": arguments}}
        asked = [{"role": "user", "content": "1+2="}, {"role": "assistant", "content": "", "tool_calls": [call]}]
        prompts.append([*asked, {"role": "tool", "content": "3", "name": "add"}])
    lines = [json.dumps({"prompt": prompt, "a": 1, "b": 2}) + "\n" for prompt in prompts]
    Path("asked.jsonl").write_text("".join(lines))
    words = ["+exp=toy_calculator", *SMALL, "data.args.num_rows=200", "trainer.args.num_generations=4"]
    assert main(["train", *words]) == 0
    run = workplace / "runs" / "toy_calculator" / "one"
    assert main(["eval", str(run), "--data", "asked.jsonl", "data.prompt=null", "--samples", "0", "--out", "."]) == 0
    (file,) = Path().glob("*.completions.jsonl")
    assert [row["prompt"] for row in rows(file)] == prompts
