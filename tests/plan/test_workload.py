"""Totals of a run by hand: rounds, steps, completions, tokens, evaluations, and the bytes of its checkpoints."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from rlhf_cli.config.schema.trainer_sections import Trainer
from rlhf_cli.display.start_panel import workload_lines
from rlhf_cli.errors import DataError, UserError
from rlhf_cli.plan import workload
from rlhf_cli.plan.batches import BatchPlan, RowLengths, StagePlan
from rlhf_cli.plan.run_plan import Checkpoints, Evaluations, Notice, Workload
from rlhf_cli.plan.workload import checkpoint_space, space_problems
from tests.support.planning import Refused, Write, planned, subject_of
from tests.support.small_runs import SMALL

CPU = ("launch=cpu", "track=none")
GRPO = ("+exp=quickstart", *CPU)
PPO = ("+exp=toy_ppo", *CPU)


def test_a_plan_as_json() -> None:
    plan = planned(*GRPO)
    assert plan.describe_steps() == "120, one round each; 1 x 64 completions per device"
    written = plan.as_json()
    assert json.loads(json.dumps(written["memory"])) == json.loads(json.dumps(plan.memory.as_json()))
    for part in ("workload", "checkpoints", "passes"):
        assert written[part] == asdict(getattr(plan, part))
    assert (written["evaluations"], plan.evaluations) == (None, None)
    assert written["stage"] is None


def test_ppo_learns_from_a_round_in_16_steps() -> None:
    """4 minibatches in 4 epochs: 20 steps are a round and a quarter. Two rounds of 256 completions are generated.

    8 tokens an answer: 4096 at most.
    """
    plan = planned(*PPO, "trainer.args.max_steps=20")
    work, shown = plan.workload, dict(workload_lines(plan))
    assert (work.rounds, work.steps_a_round, work.completions, work.prompts) == (1.25, 16, 512, 512)
    assert (work.max_tokens, work.epochs) == (4096, 512 / 2000)
    assert shown["steps"].startswith("20 = 1.25 rounds x 16; ")
    twice = planned(*GRPO, "trainer.args.num_iterations=2")
    assert twice.describe_steps() == "120 = 60 rounds x 2; 1 x 64 completions per device"
    assert shown["steps"].endswith("the last round is used in part")
    assert "512 completions of 512 prompts (0.256 times the data), 4,096 tokens generated at most" in shown["in all"]


def test_rows_that_are_learned_from() -> None:
    """3600 pairs are left of 4000 where a tenth is held out, which are 56 steps of 64 and one of the 16 that are left:
    150 steps are two epochs of 57 and 36 steps more, so 2 x 3600 + 36 x 64 = 9504 rows.
    """
    plan = planned("+exp=toy_reward", *CPU)
    assert plan.workload.longest_row is not None
    assert (plan.workload.rows, plan.workload.max_tokens) == (9504, 9504 * plan.workload.longest_row)
    assert plan.evaluations is not None
    assert plan.evaluations.rows is not None
    assert (plan.num_rows, plan.evaluations.rows) == (3600, 400)
    assert (plan.evaluations.times, plan.checkpoints is not None) == (3, True)


def test_evaluations_that_generate_more_than_the_training_are_told() -> None:
    """The quickstart trains on 7680 completions; an evaluation of N rows has 9 N."""
    often = ("+exp=quickstart", "trainer.args.eval_strategy=steps", "trainer.args.eval_steps=40", *CPU)
    few, many = (planned(*often, f"data.eval.fraction={fraction}") for fraction in (0.1, 0.2))
    assert "evaluation" not in [notice.subject for notice in few.notices]
    assert many.evaluations is not None
    assert many.evaluations.rows is not None
    (text,) = (notice.text for notice in many.notices if notice.subject == "evaluation")
    total = 3 * 9 * many.evaluations.rows
    assert text.startswith(f"{total:,} completions in all, {total / 7680:.1f} times the 7,680 of training")


STAGE = StagePlan(4, 1, 2, epochs=1.5, steps=9, rows=70)
ROUNDS = BatchPlan(4, 2, 3, 6, 2, 8, completions_a_round=48, prompts_a_round=6, steps=10)
LENGTHS = RowLengths(prompt=6, row=10)


def trainer(trl: str, **args: object) -> Trainer:
    return Trainer(name="it", trl=f"{trl}Trainer", args=args)


@pytest.mark.parametrize(
    ("trl", "args", "lengths", "row", "answer"),
    [
        ("SFT", {"max_length": 7}, LENGTHS, 7, 0),
        ("SFT", {"max_length": None}, LENGTHS, 10, 0),
        ("SFT", {"max_length": 30, "packing": True}, LENGTHS, 30, 0),
        ("SFT", {"max_length": 7}, RowLengths(6, 0), 7, 0),
        ("SFT", {"max_length": 7}, None, 7, 0),
        ("SFT", {"max_length": None}, None, None, 0),
        ("GKD", {"max_length": 7, "max_new_tokens": 5}, LENGTHS, 7, 5),  # it answers 5 tokens itself
    ],
)
def test_totals_of_rows(trl: str, args: dict[str, object], lengths: RowLengths | None, row: int, answer: int) -> None:
    tokens = 70 * (row + answer) if row else None
    made = workload.workload(trainer(trl, **args), STAGE, 40, lengths)
    assert made == Workload(9, rows=70, epochs=1.5, max_tokens=tokens, longest_row=row)
    unknown = replace(STAGE, rows=None)
    assert workload.workload(trainer(trl, **args), unknown, None, lengths) == replace(made, rows=None, max_tokens=None)


def test_totals_of_rounds() -> None:
    """6 micro-batches twice, 3 a step, are 4 steps a round: 10 steps are 2.5 rounds, and 3 are generated."""
    grpo, schedule = trainer("GRPO", max_completion_length=5), ROUNDS
    made = Workload(10, 2.5, 4.0, 18, 144, epochs=18 / 40, max_tokens=144 * 5, longest_prompt=6)
    assert workload.workload(grpo, schedule, 40, LENGTHS) == made
    for nothing in (None, RowLengths(0, 0)):
        found = workload.workload(trainer("GRPO", max_completion_length=None), schedule, None, nothing)
        assert found == replace(made, epochs=None, max_tokens=None, longest_prompt=None)
    unknown = replace(ROUNDS, steps=None)
    assert workload.workload(grpo, unknown, 40, LENGTHS) == Workload(None, steps_a_round=4.0, longest_prompt=6)


FIRST = {"eval_on_start": True}


@pytest.mark.parametrize(
    ("args", "steps", "every", "times"),
    [
        ({"eval_steps": 50}, 120, "every 50 steps and after the last", 3),  # after 50, 100 and 120
        ({"eval_steps": 40}, 120, "every 40 steps and after the last", 3),  # the last is one of them
        ({"eval_steps": 0.5}, 5, "every 3 steps and after the last", 2),
        ({"eval_steps": 1}, 5, "every step", 5),
        ({"eval_steps": 1}, None, "every step", None),
        ({"eval_steps": 0.3}, None, "every 30% of the run", 4),
        ({"eval_steps": 0.005}, None, "every 0.5% of the run", 200),
        ({"eval_steps": 50}, None, "every 50 steps and after the last", None),
        ({"eval_steps": 40, **FIRST}, 120, "every 40 steps and after the last and at the start", 4),
        ({"eval_strategy": "no", **FIRST}, None, "at the start", 1),
        ({"eval_steps": 50, "eval_delay": 60, **FIRST}, 9, "every 50 steps and after the last and at the start", None),
        ({"logging_steps": 25}, 100, "every 25 steps and after the last", 4),  # transformers' default
        ({"eval_strategy": "epoch", "num_train_epochs": 2.5, "max_steps": 0}, 9, "every epoch", 3),
        ({"eval_strategy": "epoch", "num_train_epochs": 2.5, "max_steps": 1}, 1, "every epoch", None),
        ({"eval_strategy": "epoch", "num_train_epochs": 2.5, "max_steps": 0, "eval_delay": 1}, 9, "every epoch", None),
    ],
)
def test_when_a_run_is_evaluated(args: dict[str, object], steps: int | None, every: str, times: int | None) -> None:
    """transformers' DefaultFlowCallback; tests/trainers hold its seams. 9 answers a prompt: one greedy, 8 sampled."""
    grpo, schedule = {"eval_strategy": "steps", "num_generations": 8} | args, replace(ROUNDS, steps=steps)
    for more, answers in (({}, 9), ({"num_generations_eval": 3}, 4), ({"num_generations": None}, 2)):
        found = workload.evaluations(trainer("GRPO", **(grpo | more)), schedule, 40)
        assert found == Evaluations(every, times, 40, 40 * answers)
    assert workload.evaluations(trainer("GRPO", **grpo), schedule, None) == Evaluations(every, times, None, None)
    assert workload.evaluations(trainer("SFT", **grpo), schedule, 40) == Evaluations(every, times, 40, None)
    for off in ({"eval_strategy": no, "eval_on_start": False} for no in ("no", None, False)):  # YAML reads a bare no so
        assert workload.evaluations(trainer("GRPO", **(grpo | off)), schedule, 40) is None


WEIGHTS = 4 * (258 * 16 + 4 * 16 * 16 + 3 * 4 * 16 * 16 + 3 * 16)
"""The small model in bytes of float32: 258 embeddings of 16, four projections of 16x16, three of 64x16, three norms.
Its file has 34200 bytes, a header of some 1100 among them.
"""


def space(*words: str, steps: int | None = 3) -> dict[str, int]:
    return checkpoint_space(subject_of(*SMALL, *words), steps)


@pytest.mark.parametrize(
    ("words", "every", "times", "at_once"),
    [
        (("save_steps=2", "logging_steps=1", "eval_delay=1"), "every 2 steps and after the last", 2, 2),
        (("save_strategy=epoch", "save_steps=2"), "every epoch", 2, 3),
        (("save_strategy=best",), "when it is best", None, 3),
        (("save_steps=0",), "when it is steps", None, 3),
    ],
)
def test_when_checkpoints_are_saved(words: tuple[str, ...], every: str, times: int | None, at_once: int) -> None:
    """Two are kept; a third is being written if there are that many."""
    subject = subject_of(*SMALL, *(f"trainer.args.{word}" for word in words))
    found = workload.checkpoints(subject, replace(STAGE, steps=3))
    assert found == Checkpoints(every, times, 3 * WEIGHTS, at_once, WEIGHTS, (3 * at_once + 1) * WEIGHTS)
    never = subject_of(*SMALL, "trainer.args.save_strategy=no")
    assert workload.checkpoints(never, replace(ROUNDS, steps=3)) is None


def test_bytes_of_a_stored_model(place: Path) -> None:
    """68 weights in 2 bytes; two numbers of Adam for each."""
    shapes = {"embed.weight": (10, 4), "q_proj.weight": (4, 6), "norm.weight": (4,)}
    (place / "stored").mkdir()
    save_file({name: np.zeros(shape, np.float16) for name, shape in shapes.items()}, "stored/model.safetensors")
    stored = ("model.build=null", "model.path=stored")
    for dtype, weights in (("auto", 68 * 2), ("float32", 68 * 4)):
        found = space(*stored, f"model.dtype={dtype}")
        assert (found["checkpoint_bytes"], found["model_bytes"]) == (3 * weights, weights)
    adapted = space(*stored, "model.lora.r=2")  # on q_proj alone, in float32
    assert adapted["model_bytes"] == 2 * 4 * (4 + 6)
    critics = space("trainer=ppo", "critic.init=stored", "model.dtype=bfloat16")  # a built model is in float32
    assert (critics["checkpoint_bytes"], critics["model_bytes"]) == (3 * (WEIGHTS + 136), WEIGHTS + 136)
    hub = subject_of(*SMALL, "model.build=null", "model.path=nobodys/model")
    assert (checkpoint_space(hub, 3), [*space_problems(hub, 3)]) == ({}, [])


@pytest.mark.parametrize(
    ("words", "checkpoint", "model"),
    [
        ((), 3 * WEIGHTS, WEIGHTS),  # Adam keeps two numbers beside each weight
        (("trainer.args.save_only_model=true",), WEIGHTS, WEIGHTS),
        (("trainer.args.optim=sgd",), WEIGHTS, WEIGHTS),
        # r=2 on q, k, v, o (16+16 each) and gate, up, down (16+64 each), float32, trained alone
        *(
            ((*words, "model.lora.r=2"), 3 * 2 * 4 * (4 * 32 + 3 * 80), 2 * 4 * (4 * 32 + 3 * 80))
            for words in ((), ("trainer=ppo", "critic.share=lora"))
        ),
        *(
            (("model.lora.r=2", f"model.lora.target_modules={targets}"), 3 * 2 * 4 * 32, 2 * 4 * 32)
            for targets in ("[self_attn.q_proj]", "'.*q_proj'")
        ),
        (("trainer=ppo", "trainer.args.save_only_model=true"), 4 * WEIGHTS, 2 * WEIGHTS),  # its critic's is written
        (("trainer=ppo",), 6 * WEIGHTS, 2 * WEIGHTS),  # the critic is another model, with an Adam of its own
        (("trainer.args.beta=0.1", "trainer.args.sync_ref_model=true"), 4 * WEIGHTS, WEIGHTS),
    ],
)
def test_bytes_of_a_checkpoint_and_of_the_model(words: tuple[str, ...], checkpoint: int, model: int) -> None:
    assert tuple(space(*words).values()) == (checkpoint, 1, model, checkpoint + model)


@pytest.mark.parametrize(
    ("words", "steps", "copies"),
    [
        (("save_steps=1",), 10, 3),  # two are kept, a third is being written
        (("save_steps=1",), 2, 2),
        (("save_steps=5", "save_total_limit=null"), 11, 3),
        (("save_steps=1", "save_total_limit=1"), 10, 2),
        # the best one stays, too (transformers' rotate_checkpoints)
        (("save_steps=1", "save_total_limit=1", "metric_for_best_model=reward"), 10, 3),
        (("save_steps=1", "save_total_limit=1", "load_best_model_at_end=true"), 10, 3),
        (("save_steps=1", "save_total_limit=4", "load_best_model_at_end=true"), 10, 5),
        *((("save_steps=1", f"save_total_limit={limit}"), 10, 10) for limit in (0, "null")),
        (("save_strategy=epoch", "save_steps=5"), 10, 3),
        (("save_steps=0.5",), 10, 2),
        (("save_strategy=no",), 10, 0),
        (("save_steps=1",), None, 3),
        (("save_steps=1", "save_total_limit=null"), None, 1),
    ],
)
def test_how_many_lie_there_at_once(words: tuple[str, ...], steps: int | None, copies: int) -> None:
    assert space(*(f"trainer.args.{word}" for word in words), steps=steps)["at_once"] == copies


@pytest.mark.fault(4)
def test_room_on_the_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One checkpoint and the model take 4 times the weights; two kept and a third 10 times."""

    def problem(free: int, word: str = "save_steps=1", run: Path | None = None) -> tuple[UserError | None, str | None]:
        monkeypatch.setattr(workload, "free_bytes", lambda _: free)
        subject = replace(subject_of(*SMALL, *f"trainer.args.{word}".split()), folder=run)
        found = next(space_problems(subject, 3), None)
        return (None, found.text) if isinstance(found, Notice) else (found, None)

    root, limit, only = "run.root=A_LARGER_DISK", "trainer.args.save_total_limit=1", "trainer.args.save_only_model=true"
    assert problem(10 * WEIGHTS) == problem(WEIGHTS, "save_strategy=no") == (None, None)
    for free in (10 * WEIGHTS - 1, 4 * WEIGHTS):
        none, notice = problem(free)
        assert none is None
        assert str(notice).endswith(f"{root}, or {limit}, or {only}")
        assert "3 checkpoints of" in str(notice)
    for weights, word, ways in (  # what is set already, or would not help, is no advice
        (4, "save_total_limit=1", f"{root}, or {only}"),
        (3, "save_only_model=true", f"{root}, or {limit}"),
        (4, "save_total_limit=1 trainer.args.metric_for_best_model=reward", f"{root}, or {only}"),
    ):
        notice = problem(weights * WEIGHTS, f"save_steps=1 trainer.args.{word}")[1]
        assert str(notice).endswith(f": {ways}")
    for weights, copies, words, ways in (
        (4, "3 checkpoints of", (), f"{root}, or {only}"),
        (4, "for a checkpoint of", ("save_steps=3",), f"{root}, or {only}"),
        (1, "0 checkpoints of", ("save_strategy=no",), root),
    ):
        error, notice = problem(weights * WEIGHTS - 1, *words)
        assert error is not None
        assert (error.where, error.hint, notice) == (str(Path("runs").resolve()), ways, None)
        assert str(error.got).startswith(f"{weights * WEIGHTS - 1} bytes")
        assert str(error.expected).startswith(f"at least {weights * WEIGHTS} bytes")
        assert copies in str(error.expected)
    written = {"checkpoints": 5, "model": 7, "critic": 11}  # a resumed run writes them again
    monkeypatch.setattr(workload, "bytes_below", lambda folder: written[folder.relative_to(tmp_path).as_posix()])
    assert problem(4 * WEIGHTS - 23, run=tmp_path)[0] is None
    error, _ = problem(4 * WEIGHTS - 24, run=tmp_path)
    assert error is not None
    assert (error.where, error.hint) == (str(tmp_path), only)


def test_a_max_length_that_leaves_no_row(write: Write) -> None:
    row = {"prompt": "q", "chosen": "x" * 40, "rejected": "b"}
    write("rows.jsonl", (json.dumps(row) + "\n") * 9)
    words = ("trainer=reward", "model=tiny", "data=file", "data.path=rows.jsonl")
    with pytest.raises(DataError) as caught:
        planned(*words, "trainer.args.max_length=30")
    assert (caught.value.where, caught.value.hint) == ("data", "trainer.args.max_length=42")
    assert planned(*words, str(caught.value.hint)).workload.longest_row == 42


def test_prompts_that_are_dropped_fill_no_round(write: Write, refused: Refused) -> None:
    prompts = ["x" * 600] * 9 + ["1+1="]
    write("rows.jsonl", "".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
    words = ("exp=quickstart", "data=file", "data.path=rows.jsonl", "~rewards.correct", "data.overlong_prompts=drop")
    assert refused(*words).got == "1 row"
    write("rows.jsonl", (json.dumps({"prompt": "1+1="}) + "\n") * 10)
    assert planned(*words).num_rows == 10
