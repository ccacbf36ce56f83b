"""What a trainer is built with, where stand-ins take the place of data and models; what it makes of answers."""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from datasets import Dataset

from rlhf_cli.algorithms.grpo import Grpo
from rlhf_cli.algorithms.ppo import Ppo
from rlhf_cli.data.rows import prompt_key
from rlhf_cli.errors import ModelError
from rlhf_cli.evaluation.evaluation_results import AnsweredPrompt, PartAnswers
from rlhf_cli.numerics.score_scaling import RunningDeviation
from rlhf_cli.plan.prepare import prepare
from rlhf_cli.rewards.stack.component import Component
from rlhf_cli.rewards.stack.reward_matrix import column
from rlhf_cli.rewards.stack.reward_stack import RewardStack
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.tables.trl_trainers import TRAINERS
from rlhf_cli.trainers.assemble import policy_loading, ppo_setup
from rlhf_cli.trainers.assemble import trainer as assembling
from rlhf_cli.trainers.assemble.trainer import TrainingEvaluation, _check_learns, _trl_arguments, are_conversations
from rlhf_cli.trainers.evaluation_mixin import RewardSamples
from rlhf_cli.trainers.extensions import Extensions, KeepGroups, RewardSetup
from rlhf_cli.trainers.step_profile import StepProfile

Built = Callable[..., Any]
CLOCK, SLOTS, BEATS, PAIRS = (object() for _ in range(4))


def prompts(*texts: str) -> Dataset:
    return Dataset.from_list([{"prompt": text} for text in texts])


@pytest.fixture
def built(place: Path, monkeypatch: pytest.MonkeyPatch) -> Built:
    """`built(words, rows, evals)`: what `assemble` gave to the trainer's class, what it said, and its extensions."""

    def build(words: list[str], rows: Dataset, evals: dict[str, Dataset], *, rank: int = 0, **more: Any) -> Any:
        experiment, folder = prepare([*words, "launch=cpu"]).experiment, RunFolder(place / "run")
        asked = SimpleNamespace(said=[], checked=[], callbacks=[], restored=[])
        scorer = SimpleNamespace(check_prompt=asked.checked.append)
        asked.stack = RewardStack([Component("judge", scorer), Component("plain", lambda **_: [])])
        make = assembling.trl_config

        def config(*given: Any) -> Any:
            args = make(*given)
            asked.args = args
            monkeypatch.setattr(type(args), "process_index", rank)
            monkeypatch.setattr(type(args), "main_process_first", lambda self, **_: contextlib.nullcontext())
            return args

        def stack(found: Any, **given: Any) -> RewardStack:
            asked.stack_given = given
            return asked.stack

        def extended(trl_class: type, extensions: Extensions) -> Any:
            asked.trl_class, asked.extensions = trl_class, extensions

            def trainer(**given: Any) -> Any:
                asked.given = given
                asked.trainer = SimpleNamespace(
                    model=torch.nn.Linear(1, 1),
                    extensions=extensions,
                    is_world_process_zero=lambda: rank == 0,
                    add_callback=asked.callbacks.append,
                    **{name: given[name] for name in ("train_dataset", "eval_dataset")},
                )
                return asked.trainer

            return trainer

        for name, function in {
            "trl_config": config,
            "training_stack": stack,
            "training_rows": lambda _: (rows, evals, more.get("left_out", {})),
            "policy_path": lambda _, on_progress: "./policy",
            "readable_rows": lambda _, args, policy, *datasets: datasets,
            "extended_class": extended,
            "tokenizer_of": lambda *_: more["tokenizer"],
            "lora_config": lambda *_: None,
        }.items():
            monkeypatch.setattr(assembling if hasattr(assembling, name) else policy_loading, name, function)
        monkeypatch.setattr(ppo_setup, "ppo_setup", lambda *given: ("ppo", *given[1:]))
        monkeypatch.setattr("rlhf_cli.models.scalar_heads.restore_head_dtype", asked.restored.append)
        profiled: Any = (CLOCK, SLOTS) if more.get("is_profiled") else None
        given: dict[str, Any] = {"on_progress": asked.said.append, "on_pairs": PAIRS, "heartbeat": BEATS}
        torch.backends.cuda.enable_cudnn_sdp(True)
        assert assembling.assemble(experiment, folder, **given, profiled=profiled) is asked.trainer
        assert not torch.backends.cuda.cudnn_sdp_enabled()
        asked.folder = folder
        return asked

    return build


SETS = "data.eval={easy: {world: toy_sums}, hard: {fraction: 0.25}}"


@pytest.mark.parametrize("rank", [0, 1])
def test_a_trainer_that_generates(built: Built, caplog: pytest.LogCaptureFixture, rank: int) -> None:
    """Two of three prompts of one set and no prompt of the other are trained on, and the first rank says so."""
    keep = "sampling.keep_groups={by: correct, tries: 5}"
    words = ["+exp=quickstart", SETS, keep, "guards.no_signal=3", "run.resume_weights_only=true"]
    rows, evals = prompts("a", "b", "c"), {"easy": prompts("b", "c", "x"), "hard": prompts("y")}
    asked = built(words, rows, evals, rank=rank, left_out={"data": {"empty_answers": 2}}, is_profiled=True)
    assert asked.said == ["loading the rewards", "reading the data", "loading ./policy"]
    assert asked.checked == ["a"]
    folder = asked.folder
    expected = {"device": asked.args.device, "run": folder, "rank": rank, "heartbeat": BEATS}
    assert asked.stack_given == expected
    assert [record.args[0] for record in caplog.records] == (["data.eval.easy"] if rank == 0 else [])
    assert all(str(record.args[1]).startswith("2 of 3 ") for record in caplog.records)
    functions = asked.given.pop("reward_funcs")
    assert [function.__name__ for function in functions] == ["judge", "plain"]
    assert asked.given == {"args": asked.args, "train_dataset": rows, "eval_dataset": evals, "model": "./policy"}
    found = vars(asked.extensions)
    profile, rewards = found.pop("profile"), vars(found.pop("rewards"))
    expected = {"table_log": folder.log, "left_out": {"data": {"empty_answers": 2}}, "heartbeat": BEATS}
    by_hand = Extensions(conversations=False, may_lose_state=True, **expected)  # type: ignore[arg-type]
    assert found | {"profile": None, "rewards": None} == vars(by_hand)
    assert vars(profile) == vars(StepProfile(CLOCK, SLOTS, ["judge", "plain"], has_critic=False))  # type: ignore[arg-type]
    described = {"easy": "easy: toy_sums", "hard": "hard: the 25% held out"}
    trained_on = frozenset(key for text in "bc" if (key := prompt_key({"prompt": text})))
    components = asked.stack.components
    sum_up = TrainingEvaluation(folder, components, described, writes=rank == 0, trained_on=trained_on)
    assert type(algorithm := rewards["algorithm"]) is Grpo
    given = {"no_signal": 3, "sum_up": sum_up, "generation": "auto", "keep_groups": KeepGroups("correct", 5)}
    assert rewards == vars(RewardSetup(asked.stack, algorithm=algorithm, **given))  # type: ignore[arg-type]


def test_ppo_whose_rows_are_truncated_and_whose_rewards_go_by_token(built: Built) -> None:
    words = ["+exp=quickstart", "trainer=ppo", "trainer.args.num_generations=1", "truncation=eos_penalty"]
    words += ["trainer.dense=true", "trainer.passes=plain", "guards.no_signal=off", "data.eval=null"]
    asked = built(words, prompts("a", "b"), {}, is_profiled=True)
    assert asked.said[2] == "loading the critic"
    rewards = asked.extensions.rewards
    assert asked.extensions.ppo == ("ppo", "./policy", rewards.algorithm)
    assert isinstance(rewards.algorithm, Ppo)
    assert (rewards.is_dense, rewards.no_signal, rewards.keep_groups) == (True, None, None)
    assert (rewards.passes, rewards.generation, rewards.truncation.changes_total) == ("plain", "plain", True)
    assert rewards.loss_divisor == TRAINERS["GRPOTrainer"].loss_divisor
    assert asked.given["reward_funcs"][2:] == [column]
    assert asked.given["eval_dataset"] is None
    by_hand = StepProfile(CLOCK, SLOTS, ["judge", "plain"], has_critic=True)  # type: ignore[arg-type]
    assert vars(asked.extensions.profile) == vars(by_hand)


def test_the_aggregate_and_the_divisor_of_a_loss_are_handed_on(built: Built) -> None:
    words = ["+exp=quickstart", "trainer=gmpo", "aggregate=normalize_then_sum", "data.eval=null"]
    words += ["rewards.correct.model=./judge", "~rewards.correct.fn"]
    rewards = built(words, prompts("a"), {}).extensions.rewards
    assert rewards.aggregate == rewards.sum_up.aggregate == "normalize_then_sum"
    assert rewards.loss_divisor == TRAINERS["GMPOTrainer"].loss_divisor is not None


@pytest.mark.filterwarnings("ignore:`pad_token` is deprecated:FutureWarning")
@pytest.mark.parametrize("pad", ["<eos>", "<pad>", None])
def test_a_reward_model(built: Built, caplog: pytest.LogCaptureFixture, pad: str | None) -> None:
    """A tokenizer that ends and pads with one token hides the end of a text: another special one pads then."""
    texts = {2: "<eos>", 1: "<unk>", 3: "plain"}
    added = {number: SimpleNamespace(content=text, special=text[0] == "<") for number, text in texts.items()}
    given = {"pad_token": pad, "eos_token": "<eos>", "chat_template": "<none>", "added_tokens_decoder": added}
    tokenizer = SimpleNamespace(**given)
    pairs, held_out = (Dataset.from_list([{"chosen": text, "rejected": text * 2}] * 2) for text in "ab")
    words = ["+exp=toy_reward", "model.quantize=8bit", "model.lora.r=2", "data.eval={fraction: 0.25}"]
    left_out = {"data": {"empty_answers": 2, "no_sound_margin": 1}}
    asked = built(words, pairs, {"": held_out}, left_out=left_out, tokenizer=tokenizer)
    assert asked.args.pad_token == (None if pad == "<pad>" else "<unk>")
    assert asked.said == ["reading the data", "loading the rows and ./policy"]
    assert asked.given["eval_dataset"] is held_out
    assert asked.restored == [asked.trainer.model]
    extensions = asked.extensions
    assert (extensions.ends_with_eos, extensions.conversations, extensions.rewards) == (True, False, None)
    assert extensions.measured == TRAINERS["RewardTrainer"].measured is not None
    assert [record.args for record in caplog.records] == [("data", "2 empty answers, 1 no sound margin")]
    (samples,) = asked.callbacks
    assert isinstance(samples, RewardSamples)
    assert (samples._file, samples._on_pairs, len(samples._rows)) == (asked.folder.samples, PAIRS, 2)
    none = built([*words, "reward_model.show_samples=0", "trainer.args.pad_token=other"], pairs, {}, tokenizer=None)
    assert (none.callbacks, none.args.pad_token, none.extensions.profile) == ([], "other", None)


@pytest.mark.parametrize(
    ("row", "expected"), [({"chosen": "a"}, False), ({"chosen": [{"role": "user", "content": "a"}]}, True), ({}, None)]
)
def test_which_rows_go_through_the_template(row: dict[str, Any], expected: bool | None) -> None:
    assert are_conversations(Dataset.from_list([row | {"other": 1}])) is expected


@pytest.mark.parametrize("own", ["tokenizer=./other", "chat_template=mine.jinja"])
def test_what_the_sections_add_to_trl_s_arguments(place: Path, monkeypatch: pytest.MonkeyPatch, own: str) -> None:
    (place / "mine.jinja").write_text("{{ messages }}")
    words = ["+exp=quickstart", "model.build=null", "model.path=team/m", "model.revision=v2", "model.lora.r=2"]
    words += ["model.trust_remote_code=true", f"model.{own}", "trainer.callbacks=[transformers:PrinterCallback]"]
    experiment = prepare(words).experiment
    monkeypatch.setattr(assembling, "loaders_of", lambda policy, **given: (0, 1, (policy, given)))
    monkeypatch.setattr(policy_loading, "tokenizer_of", lambda _, policy, load: ("tokenizer", policy, load))
    monkeypatch.setattr(policy_loading, "lora_config", lambda _, policy: ("lora", policy))
    interactions: Any = SimpleNamespace(arguments=lambda: {"tools": ["add"]})
    found = _trl_arguments(experiment, "./policy", RewardSetup(RewardStack([]), interactions=interactions))
    assert [type(callback).__name__ for callback in found.pop("callbacks")] == ["PrinterCallback"]  # type: ignore[attr-defined]
    load = ("./policy", {"revision": "v2", "trust_remote_code": True})
    assert found == {
        "reward_funcs": [],
        "tools": ["add"],
        "processing_class": ("tokenizer", "./policy", load),
        "peft_config": ("lora", "./policy"),
    }
    monkeypatch.setattr(policy_loading, "teacher_arguments", lambda _, policy: {"teacher_model": policy})
    taught = ["trainer=gkd", "data=toy_demonstrations", "model=tiny", "teacher.path=big"]
    assert _trl_arguments(prepare(taught).experiment, "./policy", None) == {"teacher_model": "./policy"}


def test_a_model_without_a_trained_weight_is_refused() -> None:
    trainer: Any = SimpleNamespace(model=torch.nn.Linear(1, 1))
    trainer.model.bias.requires_grad_(False)
    _check_learns(trainer)
    trainer.model.weight.requires_grad_(False)
    with pytest.raises(ModelError) as caught:
        _check_learns(trainer)
    assert (caught.value.where, caught.value.hint) == ("trainer.class, model", "model.lora.r=16")


def answer(
    prompt: str, text: str, raw: list[float | None], num_tokens: int, is_truncated: bool = False
) -> AnsweredPrompt:
    return AnsweredPrompt({"prompt": prompt}, text, [7] * num_tokens, is_truncated, raw, [None] * len(raw))


GREEDY = [answer("p", "3", [1, 4], 3), answer("q", "4", [0, 2], 5, is_truncated=True)]
SAMPLED = [
    *(answer("p", "3", [1, 2], 1), answer("p", "3", [1, 4], 2, is_truncated=True)),
    *(answer("q", "5", [1, 6], 3), answer("q", "6", [0, 0], 6)),
]
ANSWERS = {"greedy": PartAnswers(1, GREEDY), "sampled": PartAnswers(2, SAMPLED)}
LENGTH = Component("length", lambda **_: [], normalize="running")
COMPONENTS = [Component("right", lambda **_: []), LENGTH]


def test_an_evaluation_in_training_is_summed_up_and_written(tmp_path: Path) -> None:
    """Lengths are divided by 2: of two scores so far the squares sum to 4. With weights 2 and 1 the greedy totals are 4
    and 1, so 2.5 with Student's 12.706 of one degree of freedom on both sides; the sampled ones are 3 and 4, 5 and 0.
    `p` was also trained on. The tied answers of `q` are right in half.
    """
    folder, key = RunFolder(tmp_path / "run"), prompt_key({"prompt": "p"})
    assert key is not None
    summed = TrainingEvaluation(folder, COMPONENTS, {"hard": "the rows"}, writes=True, trained_on=frozenset([key]))
    running = {"length": RunningDeviation(2.0, 3.0, 4.0)}
    for step in (6, 7):
        found = summed(ANSWERS, [2.0, 1.0], step, running, "hard")
    low, high = (2.5 + sign * 12.7062 * 1.5 for sign in (-1, 1))
    greedy = {"total": 2.5, "total/low": low, "total/high": high, "total/seen": 4.0, "total/unseen": 1.0}
    greedy |= {"rewards/right": 0.5, "rewards/length": 3.0, "truncated": 0.5, "tokens": 4.0}
    sampled = {"total": 3.0, "total/low": 3 - 12.7062 * 0.5, "total/high": 3 + 12.7062 * 0.5, "total/seen": 3.5}
    sampled |= {"total/unseen": 2.5, "rewards/right": 0.75, "rewards/length": 3.0, "truncated": 0.25, "tokens": 3.0}
    expected = {f"greedy/{name}": value for name, value in greedy.items()}
    expected |= {f"sampled/{name}": value for name, value in sampled.items()}
    expected |= {"pass@1/right": 0.75, "pass@2/right": 1.0, "maj@2/right": 0.75}
    assert found == pytest.approx(expected, rel=1e-3)
    written = tmp_path / "run" / "eval" / "training"
    names = [f"step-{step}-hard.{end}" for step in (6, 7) for end in ("completions.jsonl", "json")]
    assert sorted(file.name for file in written.iterdir()) == names
    content = json.loads((written / "step-7-hard.json").read_text())
    assert content["time"] == pytest.approx(time.time(), abs=60)
    heading = {"name": "step-7-hard", "step": 7, "model": folder.label, "data": "the rows", "trained_on": 1, "rows": 2}
    assert {name: content[name] for name in heading} == heading
    assert [text.partition(" evaluation")[0] for text in content["warnings"]] == ["1 of 2"]
    assert len((written / "step-7-hard.completions.jsonl").read_text().splitlines()) == 6


@pytest.mark.parametrize("writes", [True, False])
def test_answers_without_a_total_are_warned_of_once(tmp_path: Path, caplog: Any, writes: bool) -> None:
    caplog.set_level(logging.WARNING, "rlhf")
    summed = TrainingEvaluation(RunFolder(tmp_path / "run"), COMPONENTS, {"": "rows"}, writes=writes)
    for _ in range(2):
        assert summed(ANSWERS, [2.0, 1.0], 7)["greedy/total"] is None
    assert len(caplog.records) == writes
    assert (tmp_path / "run").exists() is writes
    if writes:
        content = json.loads((tmp_path / "run" / "eval" / "training" / "step-7.json").read_text())
        assert (content["warnings"], content["trained_on"], "length" in content["no_total"]) == ([], 0, True)

    def number_of_answers(rewards: Any, weights: Any) -> list[float]:
        return [0.0 + len(rewards["right"])] * len(rewards["right"])

    own = TrainingEvaluation(*vars(summed).values())
    own.components, own.aggregate, own.writes = [COMPONENTS[0]], number_of_answers, False
    answers = {
        name: PartAnswers(of.each, [answer("p", one.completion, one.raw[:1], 1) for one in of.answers])
        for name, of in ANSWERS.items()
    }
    caplog.clear()
    found = own(answers, [2.0], 7)
    assert (found["greedy/total"], found["sampled/total"]) == (2.0, 4.0)  # never greedy and sampled answers together
    assert not caplog.records
