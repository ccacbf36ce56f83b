"""Policies through the whole command: small real runs, rewards whose value is known, and the rows they are for."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rlhf_cli.cli import main
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.data.worlds import generate
from rlhf_cli.errors import UserError
from rlhf_cli.evaluation import evaluation_run
from rlhf_cli.evaluation.evaluation_results import AnsweredPrompt, PartAnswers, completions_of, sum_up_answers
from rlhf_cli.evaluation.evaluation_run import EvaluationRequest, evaluate, policy_answers, sampling_of
from rlhf_cli.evaluation.held_out_rows import load_held_out
from rlhf_cli.evaluation.score_completions import EndOfRun
from rlhf_cli.evaluation.targets import Target
from rlhf_cli.models.policy_model import Completion, PolicyModel, Sampling
from rlhf_cli.numerics.intervals import wilson
from rlhf_cli.plan.prepare import prepare
from rlhf_cli.rewards.stack.scored_rows import ScoredRow
from rlhf_cli.runs.metrics_file import read_metrics
from rlhf_cli.runs.run_folder import RunFolder, read_json

pytestmark = pytest.mark.whole

HOLD_OUT = "data.eval.fraction=0.25"


class Says:
    """A policy that gives known answers: greedily the first, sampled one after the other."""

    device = torch.device("cpu")
    config = tokenizer = None

    def __init__(self, *answers: str) -> None:
        self.answers = answers

    def decode(self, ids: list[int]) -> str:
        return ""

    def complete(self, prompts: list[Any], sampling: Sampling, images: list[Any]) -> list[Completion]:
        for _ in prompts:
            if sampling.on_batch is not None:
                sampling.on_batch(1)
        texts = [self.answers[0 if sampling.is_greedy else row % len(self.answers)] for row in range(len(prompts))]
        return [Completion(text, list(range(len(text))), is_truncated=len(text) > 4) for text in texts]


def write_rows(name: str, rows: Iterable[dict[str, Any]]) -> None:
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))


EVALUATED = [f"trainer.args.{arg}" for arg in ("eval_strategy=steps", "eval_steps=1", "max_steps=1")]
"""A training of one step that evaluates behind it."""


def measured_in(run: RunFolder, name: str) -> dict[str, Any]:
    return read_json(run.path / "eval" / f"{name}.json")


def experiment(**rewards: Any) -> Experiment:
    trainer, empty = {"name": "grpo", "trl": "GRPOTrainer"}, {name: {} for name in ("launch", "track", "run")}
    given = {"seed": 0, "trainer": trainer, "model": {"path": "x"}, "data": {"world": "toy_sums"}, "rewards": rewards}
    return Experiment.model_validate({**given, **empty})


CORRECT = {"fn": "rlhf_cli.rewards.toy:sums_correct", "weight": 2.0}
SHORT = {"fn": "rlhf_cli.rewards.length:length_ramp", "args": {"full": 1, "zero": 11, "unit": "characters"}}
ROWS = [{"prompt": "1+1=", "a": 1, "b": 1, "answer": "2"}, {"prompt": "1+2=", "a": 1, "b": 2, "answer": "3"}]


def evaluated(policy: Any, *, samples: int = 4, **rewards: Any) -> tuple[Any, list[Any]]:
    asked = experiment(**rewards)
    sampling = sampling_of(asked, samples, 8)
    ways = {"greedy": replace(sampling, each=1, is_greedy=True), "sampled": sampling}
    parts, no_total = policy_answers(policy, asked, ROWS, ways, EndOfRun())
    return sum_up_answers(parts, list(rewards), no_total=no_total), completions_of(parts)


def test_by_hand() -> None:
    """Four samples a prompt: 2, 2, it is 3., 2. The first prompt's answer is 2, the second's is 3."""
    measured, records = evaluated(Says("2", "2", "it is 3.", "2"), short=SHORT, correct=CORRECT)
    greedy, sampled = measured.parts["greedy"], measured.parts["sampled"]
    assert (greedy.rewards["correct"].raw, greedy.rewards["correct"].weighted.mean) == (wilson(1, 2), 1.0)
    assert greedy.total.mean == pytest.approx(2 * 0.5 + 1.0)
    assert sampled.rewards["correct"].raw.mean == (3 / 4 + 1 / 4) / 2
    assert sampled.rewards["correct"].raw.count == 2  # prompts, not samples
    assert (sampled.truncated.mean, sampled.tokens.mean, sampled.tokens.max) == (0.25, (3 * 1 + 8) / 4, 8)
    assert (list(measured.attempts), len(records), records[4]["prompt"]) == (["correct"], 2 * (1 + 4), "1+1=")
    assert (records[4]["completion"], records[4]["rewards"]["correct"]) == ("it is 3.", 0.0)


@pytest.fixture
def says_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation_run, "load_policy", lambda *arguments: Says("2"))
    monkeypatch.setattr(evaluation_run, "prompt_room", lambda *arguments: None)


@pytest.mark.usefixtures("says_two")
def test_each_quarter_of_an_evaluation_is_told(place: Path) -> None:
    said: list[str] = []
    asked = EvaluationRequest("answers", "two rows", out=place, rows=2, samples=4)
    evaluate(Target("policy", place, "a policy", place), experiment(correct=CORRECT), asked, said.append)
    assert said == ["10 completions of 2 prompts, 5 each", *(f"{done} of 10" for done in (3, 5, 8, 10))]
    one = EvaluationRequest("one", "a row", out=place, rows=1, samples=0)
    evaluate(Target("policy", place, "a policy", place), experiment(correct=CORRECT), one, said.append)
    assert said[-2:] == ["1 completion of 1 prompt, 1 each", "1 of 1"]


def in_the_batch(completions: list[Any], **_: Any) -> list[float]:
    return [float(len(completions))] * len(completions)


@pytest.mark.parametrize(
    ("reward", "where"),
    [
        ({"fn": "./gone.py:f"}, "rewards.short.fn"),
        (SHORT | {"args": {"ful": 1}}, "rewards.short.args.ful"),
        ({"fn": "rlhf_cli.rewards.code:code_passes_tests"}, "data"),
    ],
)
def test_a_reward_that_cannot_be_called_is_refused_before_sampling(reward: dict[str, Any], where: str) -> None:
    with pytest.raises(UserError) as refused:
        evaluated(None, short=reward)
    assert next(error.where for error in getattr(refused.value, "problems", [refused.value])) == where


def test_greedy_answers_are_scored_apart_from_sampled_ones() -> None:
    """As in a training: a reward that ranks the answers to a prompt would rank the greedy one among the others."""
    measured, _ = evaluated(Says("2"), samples=3, size={"fn": f"{__name__}:in_the_batch"})
    sizes = {name: part.rewards["size"].raw.mean for name, part in measured.parts.items()}
    assert sizes == {"greedy": 2.0, "sampled": 6.0}


def flagged(completions: list[Any], is_truncated: list[bool], **_: Any) -> list[float]:
    return list(map(float, is_truncated))


def test_a_reward_gets_the_datas_own_column_is_truncated_as_in_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answers' own truncation stands in the file of completions."""
    rows = [{**ROWS[0], "is_truncated": True}, {**ROWS[1], "is_truncated": False}]
    monkeypatch.setitem(globals(), "ROWS", rows)
    measured, records = evaluated(Says("2", "2"), samples=1, flag={"fn": f"{__name__}:flagged"})
    assert [record["rewards"]["flag"] for record in records] == [1.0, 0.0] * 2
    assert {record["is_truncated"] for record in records} == {False}
    assert measured.parts["sampled"].truncated.mean == 0.0


def test_a_run_from_end_to_end(train, capsys: pytest.CaptureFixture[str]) -> None:
    _, folder = train(HOLD_OUT)
    capsys.readouterr()
    assert main(["eval", str(folder.path), "--samples", "2", "--rows", "5"]) == 0
    said = capsys.readouterr().out
    assert [text in said for text in ("policy quickstart/one", "correct", "total", "truncated", "pass@2")] == [True] * 5
    name = "held_out_5_rows_2_samples"
    content = measured_in(folder, name)
    assert (content["kind"], content["rows"], content["warnings"]) == ("policy", 5, [])
    assert (content["settings"]["samples"], content["settings"]["seed"]) == (2, 0)
    assert content["settings"]["max_completion_length"] == 4  # of quickstart
    lines = (file := folder.path / "eval" / f"{name}.completions.jsonl").read_text().splitlines()
    assert len(lines) == 5 * (1 + 2)
    assert {"prompt", "completion", "part", "sample", "total", "rewards", "is_truncated"} <= json.loads(lines[0]).keys()
    # What it writes is what `rlhf score` reads.
    assert main(["score", "+exp=quickstart", "--completions", str(file)]) == 0


def parsed(completions: list[Any], **_: Any) -> list[float]:
    return [float("thinking" in completion[0]) for completion in completions]


READ = "{defaults: {role: assistant, thinking: some}, start_anchor: 'assistant: ', fields: {content: {content: text}}}"


@pytest.mark.parametrize(
    ("words", "thinking"),
    [
        ([f"model.response_template={READ}"], "some"),
        (["trainer=rloo", f"model.response_template={READ}"], None),  # RLOOTrainer never parses answers
        ([], None),
    ],
)
def test_rewards_see_the_messages_of_a_training(
    train, before_training: Callable[..., None], words: list[str], thinking: str | None
) -> None:
    """A response template that adds a key to all messages; without any, an answer is a message of its whole text."""
    if not words:
        before_training(lambda trainer: setattr(trainer.processing_class, "response_template", None))
    write_rows("asked.jsonl", ROWS)
    asked = ["data.eval.path=asked.jsonl", f"rewards.parsed.fn={__name__}:parsed"]
    code, folder = train(*asked, "data.prompt=[{role: user, content: '{prompt}'}]", *EVALUATED, *words)
    assert code == 0
    assert main(["eval", str(folder.path), "--samples", "0"]) == 0
    during, after = (measured_in(folder, name) for name in ("training/step-1", "held_out_0_samples"))
    assert sorted(after["shown"], key=str) == sorted(during["shown"], key=str)
    assert {message.get("thinking") for answer in after["shown"] for message in answer["completion"]} == {thinking}
    assert after["parts"]["greedy"]["total"] == during["parts"]["greedy"]["total"]


def test_an_adapter_is_evaluated_on_its_base(train, capsys: pytest.CaptureFixture[str]) -> None:
    """Against the weights merged by PEFT itself; the base alone answers differently."""
    from peft import AutoPeftModelForCausalLM

    _, folder = train(HOLD_OUT, "+model.lora.r=4", "trainer.args.learning_rate=1")
    assert (folder.model / "adapter_config.json").is_file()
    capsys.readouterr()
    assert main(["eval", str(folder.path), "--samples", "0"]) == 0
    written = (folder.path / "eval" / "held_out_0_samples.completions.jsonl").read_text().splitlines()
    ours = [one["completion_ids"] for one in map(json.loads, written)]
    with torch.inference_mode():
        merged = AutoPeftModelForCausalLM.from_pretrained(folder.model).merge_and_unload().eval()
        base = type(merged).from_pretrained(merged.config.name_or_path).eval()

    def answers(model: Any) -> list[list[int]]:
        tokenizer = PolicyModel(folder.model).tokenizer
        generated = []
        for one in map(json.loads, written):
            ids = torch.tensor([tokenizer(one["prompt"])["input_ids"]])
            generated.append(model.generate(ids, max_new_tokens=4, do_sample=False)[0, ids.shape[1] :].tolist())
        return generated

    assert ours == answers(merged)
    assert ours != answers(base)


@pytest.mark.usefixtures("says_two")
@pytest.mark.parametrize("result", ["42", None])
def test_calls_without_a_result_are_a_warning(result: str | None, place: Path) -> None:
    messages: list[Any] = [{"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "add"}}]}]
    messages += [] if result is None else [{"role": "tool", "content": result}]
    answers = {
        "greedy": PartAnswers(1, [AnsweredPrompt(ROWS[0], messages, [1], is_truncated=False)], [ScoredRow(0.0, {})])
    }
    asked = EvaluationRequest("answers", "one row", out=place, rows=1, interact=lambda *arguments: (answers, None))
    found, files = evaluate(Target("policy", place, "a policy", place), experiment(), asked, lambda text: None)
    assert len(found.heading.warnings) == 1 + (result is None)  # the first: these are training rows
    assert [file.name for file in files] == ["answers.json", "answers.completions.jsonl"]


def test_a_run_that_held_out_nothing_says_so(train, capsys: pytest.CaptureFixture[str]) -> None:
    _, folder = train()
    capsys.readouterr()
    assert main(["eval", "run:quickstart/one", "--samples", "0", "--rows", "3", "--json"]) == 0
    shown = capsys.readouterr()
    assert "3 completions of 3 prompts, 1 each" in shown.err
    content = json.loads(shown.out)
    assert content == measured_in(folder, "training_rows_3_rows_0_samples")
    assert "TRAINING rows" in content["warnings"][0]
    assert content["trained_on"] == 3
    assert not list((folder.path / "eval").glob("held_out*"))


def test_prompts_that_were_trained_on_have_separate_results(train, capsys: pytest.CaptureFixture[str]) -> None:
    """While it trains, afterwards, and by `--data`: two of the three questions are training rows of the run."""
    trained = generate("toy_sums", {"num_rows": 64}, seed=0)  # as in SMALL
    asked = [trained[3], trained[5], {"prompt": "90+91=", "a": 90, "b": 91, "answer": "181"}]
    write_rows("rows.jsonl", trained)
    write_rows("asked.jsonl", asked)
    code, folder = train("data.eval.path=asked.jsonl", *EVALUATED)
    assert code == 0
    assert "2 of 3 evaluation rows have a prompt that the model is trained on" in capsys.readouterr().out
    (event,) = [event for event in read_metrics(folder.metrics) if "eval_greedy/total" in event]
    both = [event[f"eval_greedy/total/{which}"] for which in ("seen", "unseen")]
    assert event["eval_greedy/total"] == pytest.approx((2 * both[0] + both[1]) / 3)
    assert measured_in(folder, "training/step-1")["trained_on"] == 2
    for typed, name in (([], "held_out"), (["--data", "asked.jsonl"], "asked")):
        assert main(["eval", str(folder.path), *typed, "--samples", "0"]) == 0
        said = capsys.readouterr().out
        assert "2 prompts trained on" in said
        assert "1 unseen" in said
        found = measured_in(folder, f"{name}_0_samples")
        assert (found["trained_on"], found["by_prompts"]["unseen"]["rows"]) == (2, 1)
        assert [found["by_prompts"][which]["parts"]["greedy"]["total"]["mean"] for which in ("seen", "unseen")] == both
    assert main(["eval", str(folder.path), "--data", "rows.jsonl", "--samples", "0", "--json"]) == 0
    whole = json.loads(capsys.readouterr().out)
    assert whole["trained_on"] == len(trained)
    assert "by_prompts" not in whole


@pytest.mark.parametrize(("policy", "count"), [("drop", 2), ("truncate", 3)])
def test_prompts_without_room_are_handled_as_in_training(
    train, policy: str, count: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second prompt is as long as the context. It is also trained on: where it is cut, both are the same prompt."""
    rows = [{"prompt": prompt, "a": 1, "b": 1, "answer": "2"} for prompt in ("1+1=", "1" * 509 + "+1=", "2+2=")]
    write_rows("asked.jsonl", rows)
    write_rows("rows.jsonl", [*rows[1:2], *rows[:1] * 15])
    words = ["~data", "data.path=rows.jsonl", "data.eval.path=asked.jsonl", f"data.overlong_prompts={policy}"]
    code, folder = train(*words, *EVALUATED)
    assert code == 0
    capsys.readouterr()
    assert main(["eval", str(folder.path), "--samples", "0"]) == 0
    assert "1 of 3 prompts" in capsys.readouterr().out
    during, found = (measured_in(folder, name) for name in ("training/step-1", "held_out_0_samples"))
    assert (found["rows"], found["trained_on"]) == (during["rows"], during["trained_on"]) == (count, count - 1)
    assert found["parts"]["greedy"]["total"] == during["parts"]["greedy"]["total"]
    for which in ([], ["--held-out"]):
        assert main(["generate", str(folder.path), "-n", "2", "--overwrite", "--by", "correct", *which]) == 0
        made = read_json(folder.path / "generated" / "best_of_n.json")
        assert made["prompts"] == (count if which else 13 + count)
        assert "1 of " in made["data"]
    assert main(["eval", str(folder.path), "data.overlong_prompts=error"]) == 2


def test_pairs_that_training_dropped_are_not_evaluated(place: Path) -> None:
    """Of four pairs one has equal answers and one an empty one."""
    pairs = [("good", "bad"), ("same", "same"), ("fine", "poor"), ("", "empty")]
    write_rows("pairs.jsonl", ({"prompt": f"{n}?", "chosen": a, "rejected": b} for n, (a, b) in enumerate(pairs)))
    words = ["trainer=reward", "model=tiny", "data=file", "data.path=pairs.jsonl"]
    dropping, refusing = (prepare([*words, *more]).experiment for more in (["reward_model.on_bad_pair=drop"], []))
    found = load_held_out(dropping, needs="prompt", limit=None, or_training=True)
    assert ([row["prompt"] for row in found.rows], found.trained_on) == (["0?", "2?"], None)
    (warning,) = found.warnings
    assert "TRAINING" in warning
    # Negative control: where training refused such pairs there are none to drop.
    assert len(load_held_out(refusing, needs="prompt", limit=None, or_training=True).rows) == 4


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("trainer=gkd trainer.args.max_new_tokens=16", (16, 0.9, 1.0)),
        ("trainer=gold", (128, 0.9, 0.95)),
        ("trainer=sdft trainer.args.temperature=0.5", (256, 0.5, 1.0)),
        ("trainer=sft", (512, 1.0, 1.0)),  # GRPO's defaults: it does not sample
        ("trainer=orpo", (512, 1.0, 1.0)),
    ],
)
def test_answers_are_sampled_with_the_arguments_of_their_trainer(
    words: str, expected: tuple[int, float, float], workplace: Path
) -> None:
    teacher = ["teacher.path=there"] if "gkd" in words or "gold" in words else []
    asked = prepare([*words.split(), *teacher, "data=file", "data.path=rows.jsonl", "model=tiny"]).experiment
    settings = sampling_of(asked, 1, 8).settings
    assert tuple(settings[name] for name in ("max_completion_length", "temperature", "top_p")) == expected
