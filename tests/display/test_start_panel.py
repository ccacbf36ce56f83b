"""The panel before a run, of experiments as they are typed, and its table of memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlhf_cli.display.start_panel import memory_table, show_start
from rlhf_cli.plan.devices import Device
from rlhf_cli.plan.memory_estimate import MemoryPlan, Moment
from rlhf_cli.plan.preflight import preflight
from rlhf_cli.plan.prepare import prepare
from rlhf_cli.plan.run_plan import Plan
from tests.support.terminal import drawn, printed


def read(*words: str, folder: str | None = None) -> dict[str, str]:
    """The first word of each line within the frame -> the rest of the first line that begins with it."""
    prepared = prepare(["exp=quickstart", "launch=cpu", "track=none", *words], keep_run_names=True)
    experiment, plan = prepared.experiment, preflight(prepared.experiment, prepared.composed)
    lines = printed(lambda console: show_start(console, experiment, plan, title="sums", folder=folder, is_whole=True))
    assert lines[0].startswith("╭─ sums ─")
    inside = [
        line.strip("│ ").split(maxsplit=1) for line in reversed(lines[1:])
    ]  # parts of memory are folded at the end
    return {first: " ".join(rest).strip() for first, *rest in filter(None, inside)}


def test_what_will_happen(place: Path) -> None:
    lines = read("seed=7", folder="runs/sums/one")
    assert lines["trainer"] == "grpo  (GRPOTrainer of TRL, seed 7)"
    assert lines["processes"] == "1 (device cpu, precision float32)"
    assert (lines["run"].split(), lines["passes"]) == (["folder", "runs/sums/one"], "packed")
    assert lines["correct"].split()[0] == "1"
    assert not {"critic", "advantages"} & lines.keys()
    gate = "rewards.brevity.gate={by: correct, at_least: 1, otherwise: exclude}"
    weight = "rewards.format.weight={start: 0, end: 1, steps: 3}"
    lines = read("trainer.args.torch_compile=true", "advantages=pass_at_k", gate, weight, "rewards.correct.on_error=0")
    assert lines["guards"].endswith("without a signal, or a reward failing")  # and goes on below
    assert lines["passes"] == "trimmed: it is compiled for rows of one shape"
    assert "published:pass_at_k" in lines["advantages"]
    assert lines["reward"].split() == ["weight", "only", "where", "scored", "by"]
    assert (lines["brevity"].split()[:4], lines["format"][:6]) == (["0.2", "correct", ">=", "1"], "0 to 1")
    for policy, penalty, shown in (
        ("soft_overlong", 3, "soft_overlong 3"),
        ("eos_penalty", 2, "eos_penalty, subtract 2"),
    ):
        assert read(f"truncation={policy}", f"truncation.penalty={penalty}")["truncation"] == shown


def test_a_reward_models_stage(place: Path) -> None:
    margin = "reward_model.margin={chosen: score_chosen, rejected: score_rejected, transform: log1p}"

    def shown(*words: str) -> tuple[str, Plan]:
        prepared = prepare(["exp=toy_reward", "launch=cpu", "track=none", *words], keep_run_names=True)
        experiment, plan = prepared.experiment, preflight(prepared.experiment, prepared.composed)
        lines = printed(lambda one: show_start(one, experiment, plan, title="pairs", folder=None, is_whole=True), 120)
        return " ".join(" ".join(line.strip("│ ") for line in lines).split()), plan

    text, plan = shown("reward_model.center=0.01")
    assert plan.evaluations is not None
    rows = f"every 50 steps and after the last, 3 times: {plan.evaluations.rows} rows"
    parts = ("rows to train on", "margin none center scores near 0 by 0.01", rows)
    assert [part for part in parts if part not in text] == []
    assert "1 x log1p of score_chosen - score_rejected" in shown(margin)[0]


GATED = [
    f"+rewards.{name}={{fn: rlhf_cli.rewards.toy:digits_only, gate: {{by: correct, at_least: 1}}}}"
    for name in "abcdefgh"
]
PPO = ("exp=toy_ppo", "model.lora.r=4", "model.lora.lora_dropout=0.1", "trainer.args.disable_dropout=false")


@pytest.mark.parametrize(
    ("words", "width"),
    [(("exp=quickstart",), 80), (("exp=quickstart", *GATED), 120), ((*PPO, *GATED), 80), (("exp=toy_sft",), 80)],
    ids=["quickstart", "many rewards", "ppo", "sft"],
)
def test_before_a_run_stand_twenty_lines_at_most(place: Path, words: tuple[str, ...], width: int) -> None:
    """What is left out is for `rlhf check`; which model, which data, how long and where to is never left out."""
    prepared = prepare([*words, "launch=cpu", "track=none"], keep_run_names=True)
    plan = preflight(prepared.experiment, prepared.composed)
    folder = "runs/an_experiment_of_a_long_name/20261123-034013"
    lines = printed(lambda console: show_start(console, prepared.experiment, plan, title="sums", folder=folder), width)
    frame = [line.strip("│ ") for line in lines if line[0] in "╭│╰"]
    assert len(frame) <= 20
    firsts = {line.partition(" ")[0] for line in frame}
    assert {"trainer", "model", "data", "steps", "run"} <= firsts
    assert not {"memory", "guards", "in", "passes", "batch", "checkpoints"} & firsts
    assert "rlhf check shows memory, guards and workload" in frame[-1]
    text, rewards = " ".join(frame), [*prepared.experiment.rewards]
    assert (folder in text, "…" in text) == (True, False)
    assert set(rewards[:4]) <= firsts
    assert (" more" in text) == bool(set(rewards) - firsts)


GB = 10**9
GENERATING = Moment("generation", "generating 8 completions", {"weights": 2 * GB, "KV cache": 1 * GB})
LEARNING = Moment("training", "learning from 8 rows", {"weights": 2 * GB, "activations": 6 * GB, "logits": 10**6})


@pytest.mark.parametrize("width", [80, 120])
def test_a_row_a_phase_and_its_parts_by_size(width: int) -> None:
    """Of the fullest moment, without what is below 1 %."""
    smaller = Moment("training", "the end of the backward pass", {"weights": 2 * GB, "gradients": 2 * GB})
    plan = MemoryPlan(Device(on_gpu=True, num_bytes=16 * GB), (GENERATING, LEARNING, smaller))
    assert [" ".join(line.split()) for line in drawn(memory_table(plan), width)] == [
        "memory of each GPU (16.0 GB) peak estimated parts",
        "generation 3.0 GB weights 2.0 GB, KV cache 1.0 GB",
        "training 8.0 GB activations 6.0 GB, weights 2.0 GB",
        "largest part: activations, 75% (learning from 8 rows)",
    ]
    parts = {"activations": 106_100_000, "logits": 37_300_000}  # the heading stays in a line beside long parts
    plan = MemoryPlan(Device(on_gpu=False, num_bytes=25 * GB), (Moment("training", "learning from 8 rows", parts),))
    assert drawn(memory_table(plan), 76)[0].startswith("memory of each process (25.0 GB)")


@pytest.mark.parametrize(
    ("plan", "last"),
    [
        (
            MemoryPlan(Device(on_gpu=True, num_bytes=7 * GB), (GENERATING, LEARNING)),
            "more than the 7.0 GB of the GPU: it will not fit",
        ),
        (MemoryPlan(Device(), unknown="model_type mamba2"), "memory: not estimated (model_type mamba2)"),
        (MemoryPlan(Device(), (LEARNING,), leaves_out=("prompts",)), "not counted: prompts"),
    ],
)
def test_what_does_not_fit_or_is_not_known(plan: MemoryPlan, last: str) -> None:
    assert drawn(memory_table(plan))[-1] == last
