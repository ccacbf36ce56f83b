"""Totals of a run by hand: rounds, steps, completions, tokens, evaluations, and the bytes of its checkpoints."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from rlhf_cli.display.start_panel import workload_lines
from rlhf_cli.errors import ConfigError, DataError, RunError
from rlhf_cli.models.tokenizer_files import read_tokenizer
from rlhf_cli.plan import workload
from rlhf_cli.plan.prepare import prepare
from rlhf_cli.plan.row_tokens import RowCounter
from rlhf_cli.plan.workload import checkpoint_space, space_problems
from tests.support.model_copies import model_copy
from tests.support.planning import Write, planned
from tests.support.small_runs import SMALL

CPU = ("launch=cpu", "track=none")
GRPO = ("+exp=quickstart", *CPU)
PPO = ("+exp=toy_ppo", *CPU)


def test_a_plan_as_json() -> None:
    plan = planned(*GRPO)
    assert plan.memory is not None
    written = plan.as_json()
    assert json.loads(json.dumps(written["memory"])) == json.loads(json.dumps(plan.memory.as_json()))
    assert (written["stage"], replace(plan, memory=None).as_json()["memory"]) == (None, None)


def lines(*words: str) -> dict[str, str]:
    return dict(workload_lines(planned(*words)))


def test_ppo_learns_from_a_round_in_16_steps() -> None:
    """4 minibatches in 4 epochs: 20 steps are a round and a quarter. Two rounds of 256 completions are generated.

    8 tokens an answer: 4096 at most.
    """
    work = planned(*PPO, "trainer.args.max_steps=20").workload
    assert (work.rounds, work.steps_a_round, work.completions, work.prompts) == (1.25, 16, 512, 512)
    assert (work.max_tokens, work.epochs) == (4096, 512 / 2000)
    shown = lines(*PPO, "trainer.args.max_steps=20")
    assert shown["steps"].startswith("20 = 1.25 rounds x 16; ")
    assert shown["steps"].endswith("the last round is used in part")
    assert "512 completions of 512 prompts (0.256 times the data), 4096 tokens generated at most" in shown["in all"]
    assert lines(*PPO, "trainer.args.max_steps=32")["steps"].startswith("32 = 2 rounds x 16; 1 x 64")


def test_the_longest_of_many_rows_is_counted_wherever_it_is(write: Write) -> None:
    """A token is a byte, and the row's end is one more."""
    rows = [{"prompt": f"{number:03}", "completion": "b" * (40 if number == 150 else 5)} for number in range(200)]
    write("rows.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    plan = planned("exp=toy_sft", "data=file", "data.path=rows.jsonl", "data.eval.path=rows.jsonl", *CPU)
    assert plan.workload.longest_row == 3 + 40 + 1
    renamed = ("trainer.args.dataset_text_field=body", "data.rename.body=completion", "data.rename.unread=prompt")
    plan = planned("exp=toy_sft", "data=file", "data.path=rows.jsonl", "data.eval.fraction=0.1", *renamed, *CPU)
    assert plan.workload.longest_row == 40 + 1


def test_without_a_template_the_contents_are_counted(tmp_path: Path) -> None:
    folder = model_copy(tmp_path / "model", without=("chat_template.jinja",))
    counter = RowCounter(read_tokenizer(folder, where="model"), {})
    assert counter.wholes([{"messages": [{"role": "user", "content": "1+1="}]}]) == [4]


def test_rows_that_are_learned_from() -> None:
    """3600 pairs are left of 4000 where a tenth is held out, which are 56 steps of 64 and one of the 16 that are left:
    150 steps are two epochs of 57 and 36 steps more, so 2 x 3600 + 36 x 64 = 9504 rows.

    Where those 16 are dropped an epoch is 56 steps of 3584 rows: 2 x 3584 + 38 x 64 = 9600.
    """
    toy = ("+exp=toy_reward", "launch=cpu", "track=none")
    plan, dropped = planned(*toy), planned(*toy, "trainer.args.dataloader_drop_last=true")
    assert plan.workload.rows == 9504
    assert plan.workload.longest_row is not None
    assert plan.workload.max_tokens == 9504 * plan.workload.longest_row
    assert (dropped.workload.rows, dropped.workload.epochs) == (9600, 150 / 56)
    two_epochs = ("trainer.args.max_steps=-1", "trainer.args.num_train_epochs=2", "~expect")
    assert planned(*toy, *two_epochs).workload.rows == 2 * 3600
    assert plan.evaluations is not None
    assert plan.num_rows is not None
    assert plan.evaluations.rows is not None
    assert plan.num_rows + plan.evaluations.rows == 4000


@pytest.mark.parametrize(
    ("words", "times"),
    [
        (("trainer.args.eval_steps=50",), 3),  # after 50, 100 and the last, 120
        (("trainer.args.eval_steps=40",), 3),  # the last is one of them
        (("trainer.args.eval_steps=0.5",), 2),
        (("trainer.args.eval_steps=40", "trainer.args.eval_on_start=true"), 4),
        (("trainer.args.eval_steps=50", "trainer.args.eval_delay=60"), None),
    ],
)
def test_evaluations_come_after_the_last_step_too(words: tuple[str, ...], times: int | None) -> None:
    """transformers' DefaultFlowCallback; tests/trainers hold its seams. 9 answers a prompt: one greedy, 8 sampled."""
    held_out = ("data.eval.fraction=0.1", "trainer.args.eval_strategy=steps")
    plan = planned(*GRPO, *held_out, *words)
    assert plan.evaluations is not None
    assert plan.evaluations.rows is not None
    assert (plan.evaluations.times, plan.evaluations.completions) == (times, 9 * plan.evaluations.rows)
    assert planned(*GRPO).evaluations is None


WEIGHTS = 4 * (258 * 16 + 4 * 16 * 16 + 3 * 4 * 16 * 16 + 3 * 16)
"""The small model in bytes of float32: 258 embeddings of 16, four projections of 16x16, three of 64x16, three norms.
Its file has 34200 bytes, a header of some 1100 among them.
"""


def space(*words: str, steps: int | None = 3) -> dict[str, int]:
    return checkpoint_space(prepare([*SMALL, *words]).experiment, steps)


def test_adam_keeps_two_numbers_beside_each_weight() -> None:
    assert tuple(space().values()) == (3 * WEIGHTS, 1, WEIGHTS, 4 * WEIGHTS)


@pytest.mark.parametrize(
    ("words", "checkpoint", "model"),
    [
        (("trainer.args.save_only_model=true",), WEIGHTS, WEIGHTS),
        (("trainer.args.optim=sgd",), WEIGHTS, WEIGHTS),
        # r=2 on q, k, v, o (16+16 each) and gate, up, down (16+64 each), float32, trained alone
        (("model.lora.r=2",), 3 * 2 * 4 * (4 * 32 + 3 * 80), 2 * 4 * (4 * 32 + 3 * 80)),
        (("model.lora.r=2", "model.lora.target_modules=[q_proj]"), 3 * 2 * 4 * 32, 2 * 4 * 32),
        (("model.lora.r=2", "model.lora.target_modules=[self_attn.q_proj]"), 3 * 2 * 4 * 32, 2 * 4 * 32),
        (("model.lora.r=2", "model.lora.target_modules='.*q_proj'"), 3 * 2 * 4 * 32, 2 * 4 * 32),
        (("trainer=ppo",), 6 * WEIGHTS, 2 * WEIGHTS),  # the critic is another model, with an Adam of its own
        (("trainer.args.beta=0.1", "trainer.args.sync_ref_model=true"), 4 * WEIGHTS, WEIGHTS),
    ],
)
def test_bytes_of_a_checkpoint_and_of_the_model(words: tuple[str, ...], checkpoint: int, model: int) -> None:
    found = space(*words)
    assert (found["checkpoint_bytes"], found["model_bytes"]) == (checkpoint, model)


@pytest.mark.parametrize(
    ("words", "steps", "copies"),
    [
        (("trainer.args.save_steps=1",), 10, 3),  # two are kept, a third is being written
        (("trainer.args.save_steps=1",), 2, 2),
        (("trainer.args.save_steps=5", "trainer.args.save_total_limit=null"), 11, 3),
        (("trainer.args.save_steps=1", "trainer.args.save_total_limit=1"), 10, 2),
        (("trainer.args.save_steps=0.5",), 10, 2),
        (("trainer.args.save_strategy=no",), 10, 0),
        (("trainer.args.save_steps=1",), None, 3),
        (("trainer.args.save_steps=1", "trainer.args.save_total_limit=null"), None, 1),
    ],
)
def test_how_many_lie_there_at_once(words: tuple[str, ...], steps: int | None, copies: int) -> None:
    assert space(*words, steps=steps)["at_once"] == copies


class TestRoom:
    """One checkpoint and the model take 4 times the weights; two kept and a third 10 times."""

    @pytest.fixture
    def free(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
        def set_free(weights: float) -> None:
            monkeypatch.setattr(workload, "free_bytes", lambda _: int(weights * WEIGHTS))

        return set_free

    def problems(self, run: Path | None = None) -> tuple[list[RunError], str | None]:
        return space_problems(prepare([*SMALL, "trainer.args.save_steps=1"]).experiment, 3, run)  # type: ignore[return-value]

    @pytest.mark.fault(4)
    def test_not_for_all(self, free) -> None:
        free(9.9)
        problems, notice = self.problems()
        assert problems == []
        assert notice is not None
        assert "3 checkpoints of" in notice
        assert "save_total_limit=1" in notice

    @pytest.mark.fault(4)
    def test_not_for_one(self, free) -> None:
        free(3.9)
        (problem,), _ = self.problems()
        assert f"at least {4 * WEIGHTS} bytes" in str(problem.expected)
        assert f"{int(3.9 * WEIGHTS)} bytes" in str(problem.got)
        assert "run.root=" in str(problem.hint)

    def test_what_a_run_has_written_it_will_write_again(self, free, tmp_path: Path) -> None:
        free(3.9)
        assert self.problems(tmp_path)[0]
        (tmp_path / "checkpoints" / "checkpoint-1").mkdir(parents=True)
        (tmp_path / "checkpoints" / "checkpoint-1" / "model.safetensors").write_bytes(bytes(WEIGHTS))
        assert self.problems(tmp_path)[0] == []


LONG, TALK = "x" * 40, {"role": "user", "content": "q"}


@pytest.mark.parametrize(
    ("trainer", "row"),
    [
        ("sft", {"prompt": LONG, "completion": "a"}),
        ("dpo", {"prompt": LONG, "chosen": "a", "rejected": "b"}),
        ("kto", {"prompt": LONG, "completion": "a", "label": True}),
        ("reward", {"prompt": "q", "chosen": LONG, "rejected": "b"}),
        ("reward", {side: [TALK, {"role": "assistant", "content": side + LONG}] for side in ("chosen", "rejected")}),
    ],
)
def test_a_max_length_that_leaves_no_row_or_few(trainer: str, row: dict[str, object], place: Path) -> None:
    """A row of TRL's is left out if its prompt fills `max_length`, and a pair if a text is longer."""
    words = [f"trainer={trainer}", "model=tiny", "data=file", "data.path=rows.jsonl"]
    rows = [row] * 9 + [{name: "q" if value == LONG else value for name, value in row.items()}]
    (place / "rows.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows[:9]))
    with pytest.raises(DataError) as caught:
        planned(*words, "trainer.args.max_length=30")
    assert caught.value.where == "data"
    assert not [notice for notice in planned(*words, str(caught.value.hint)).notices if notice.subject == "data"]
    if trainer in ("sft", "kto"):
        assert not [note for note in planned(*words, "trainer.args.max_length=41").notices if note.subject == "data"]
    (place / "rows.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    if rows[9] != row:
        (notice,) = [
            notice for notice in planned(*words, "trainer.args.max_length=30").notices if notice.subject == "data"
        ]
        assert "9 of 10" in notice.text


def test_prompts_that_are_dropped_fill_no_round(place: Path) -> None:
    prompts = ["x" * 600] * 9 + ["1+1="]
    (place / "rows.jsonl").write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
    words = ["exp=quickstart", "data=file", "data.path=rows.jsonl", "~rewards.correct", "data.overlong_prompts=drop"]
    with pytest.raises(ConfigError) as caught:
        planned(*words)
    assert caught.value.got == "1 rows"
    (place / "rows.jsonl").write_text((json.dumps({"prompt": "1+1="}) + "\n") * 10)
    assert planned(*words).num_rows == 10
