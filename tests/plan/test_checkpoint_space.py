"""Bytes that a run will write, by hand and compared with files; errors and notices if the disk is too small."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rlhf_cli.errors import RunError
from rlhf_cli.plan import workload
from rlhf_cli.plan.prepare import prepare
from rlhf_cli.plan.workload import checkpoint_space, space_problems
from tests.support.small_runs import SMALL

pytestmark = pytest.mark.usefixtures("place")
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
