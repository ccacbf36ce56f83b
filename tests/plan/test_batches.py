"""Batch arithmetic, compared with numbers by hand and with TRL's sampler; trainers that learn from rows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, Literal

import pytest
from trl import GRPOConfig

from rlhf_cli.config.origins import Origins
from rlhf_cli.config.schema.trainer_sections import Trainer
from rlhf_cli.errors import ConfigError
from rlhf_cli.plan.batches import BatchPlan, StagePlan, plan_batches, plan_stage
from tests.support.model_copies import model_copy
from tests.support.planning import Refused, Write, planned

SHORT = {
    "per": "per_device_train_batch_size",
    "acc": "gradient_accumulation_steps",
    "g": "num_generations",
    "spg": "steps_per_generation",
    "gbs": "generation_batch_size",
    "iterations": "num_iterations",
    "epochs": "num_train_epochs",
    "max_steps": "max_steps",
}


def plan(
    *, processes: int = 1, rows: int | None = 1000, baseline: Literal["group", "critic"] = "group", **args: Any
) -> BatchPlan:
    long = {SHORT.get(key, key): value for key, value in args.items()}
    trainer = Trainer(name="it", trl="GRPOTrainer", baseline=baseline, args=long)
    return plan_batches(trainer, processes=processes, num_rows=rows, origins=Origins())


def stage(trl: str = "SFTTrainer", *, processes: int = 1, rows: int | None = 100, **args: Any) -> StagePlan:
    trainer = Trainer(name="it", trl=trl, args={SHORT.get(key, key): value for key, value in args.items()})
    return plan_stage(trainer, processes=processes, num_rows=rows, origins=Origins())


def refusal(**words: Any) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        plan(**words)
    return caught.value


@pytest.mark.parametrize(
    ("args", "micro_batches", "completions", "prompts", "steps"),
    [
        # 8 x 1 x 4 = 32 completions, 4 prompts; 100 rows are 25 rounds of 4 micro-batches; 4 of them make a step
        ({"per": 8, "acc": 4, "g": 8, "rows": 100, "epochs": 1.0}, 4, 32, 4, 25),
        # two processes: 4 x 2 x 2 = 16, 4 prompts; 10 rows are 2 whole rounds (2 rows are left over);
        # each round is used 3 times: 2 x 2 x 3 = 12 micro-batches a process, 2 a step: 6 steps, twice
        ({"per": 4, "acc": 2, "g": 4, "processes": 2, "iterations": 3, "rows": 10, "epochs": 2.0}, 2, 16, 4, 12),
        # the round's size is given: 24 / 4 = 6 micro-batches, 3 prompts; 7 rows: 2 rounds, 12 micro-batches, 4 a step
        ({"per": 4, "acc": 4, "g": 8, "gbs": 24, "rows": 7, "epochs": 1.0, "max_steps": 0}, 6, 24, 3, 3),
        # the same on two processes: 24 / (4 x 2) = 3 micro-batches; 2 rounds are 6, 4 a step, the last one short
        ({"per": 4, "acc": 4, "g": 8, "gbs": 24, "processes": 2, "rows": 7, "epochs": 1.0}, 3, 24, 3, 2),
        # 3 micro-batches a round, 2 a step: 9 rows are 3 rounds, 9 micro-batches, 4.5 -> 5 steps; 1.5 epochs 7.5 -> 8
        ({"per": 4, "acc": 2, "g": 4, "spg": 3, "rows": 9, "epochs": 1.5}, 3, 12, 3, 8),
        # a number of steps wins over everything; 4 rows are one round
        ({"per": 8, "acc": 4, "g": 8, "rows": 4, "max_steps": 1}, 4, 32, 4, 1),
        # nothing known of the rows
        ({"per": 8, "acc": 4, "g": 8, "rows": None, "max_steps": 5}, 4, 32, 4, 5),
        ({"per": 8, "acc": 4, "g": 8, "rows": None, "max_steps": 0, "iterations": None}, 4, 32, 4, None),
    ],
)
def test_by_hand(args: dict[str, Any], micro_batches: int, completions: int, prompts: int, steps: int | None) -> None:
    own = (args["per"], args.get("processes", 1), args["acc"], micro_batches, args.get("iterations") or 1, args["g"])
    assert plan(**args) == BatchPlan(*own, completions, prompts, steps)


def test_a_round_in_a_line() -> None:
    line = "8 completions a device x 1 process x 4 micro-batches = 32 a round: 4 prompts x 8 generations"
    assert plan(per=8, acc=4, g=8).describe() == line
    line = "1 completion a device x 2 processes x 1 micro-batch = 2 a round: 1 prompt x 2 generations x 2 epochs"
    assert plan(per=1, processes=2, g=2, iterations=2).describe() == line


def trl_sampler(rows: int, prompts: int, generations: int, repeats: int) -> Iterator[int]:
    """TRL 1.16's RepeatSampler (trl/trainer/utils.py), unshuffled and written out."""
    for start in range(0, rows - prompts + 1, prompts):
        for _ in range(repeats):
            for row in range(start, start + prompts):
                yield from [row] * generations


@pytest.mark.parametrize(
    ("per", "acc", "processes", "g", "spg", "iterations", "rows"),
    [
        (8, 4, 1, 8, None, 1, 100),
        (4, 2, 2, 4, None, 3, 10),
        (2, 3, 4, 8, 2, 2, 31),
        (4, 8, 1, 4, 1, 1, 5),
        (1, 1, 8, 8, 1, 4, 3),
    ],
)
def test_steps_of_an_epoch_are_those_of_trls_sampler(
    per: int, acc: int, processes: int, g: int, spg: int | None, iterations: int, rows: int
) -> None:
    found = plan(per=per, acc=acc, processes=processes, g=g, spg=spg, iterations=iterations, rows=rows, epochs=1.0)
    micro_batches = spg or acc
    drawn = len(list(trl_sampler(rows, found.prompts_a_round, g, iterations * micro_batches)))
    # GRPOTrainer.get_train_dataloader: a batch is per_device x steps_per_generation rows, dealt to the processes
    batches_a_process, rest = divmod(drawn, per * micro_batches * processes)
    assert rest == 0
    # transformers.Trainer.set_initial_training_values
    assert found.steps == max(batches_a_process // acc + (batches_a_process % acc > 0), 1)


def test_with_a_critic_by_hand() -> None:
    """8 x 2 x 3 = 48 prompts of one completion; 100 rows are 2 rounds of 3 micro-batches, each used twice: 12."""
    found = plan(per=8, processes=2, spg=3, g=1, iterations=2, rows=100, epochs=1.0, baseline="critic")
    assert (found.completions_a_round, found.prompts_a_round, found.steps) == (48, 48, 12)
    assert plan(per=1, processes=2, g=1, baseline="critic").completions_a_round == 2


@pytest.mark.parametrize(("per_device", "each"), [*product([1, 4, 6, 8, 20, 24], [None, 2, 3, 8])])
def test_an_evaluation_s_batch_holds_whole_groups_as_trl_asks(per_device: int, each: int | None) -> None:
    args = {"eval_strategy": "steps", "per_device_eval_batch_size": per_device, "num_generations_eval": each}

    def trl_takes_it() -> bool:
        try:
            GRPOConfig(num_generations=4, per_device_train_batch_size=8, bf16=False, use_cpu=True, eval_steps=1, **args)
        except ValueError:
            return False
        return True

    if trl_takes_it():
        assert plan(per=8, g=4, **args)
        return
    refused = refusal(per=8, g=4, **args)
    key, _, size = str(refused.hint).partition("=")
    assert key == refused.where == "trainer.args.per_device_eval_batch_size"
    assert per_device < int(size) <= per_device + (each or 4)
    assert plan(per=8, g=4, **{**args, "per_device_eval_batch_size": int(size)})
    assert plan(per=8, g=4, **(not_later := {**args, "eval_strategy": "no"}))
    assert refusal(per=8, g=4, **not_later, eval_on_start=True).hint == refused.hint


BATCH, ROUND, EVALUATED = "per_device_train_batch_size", "generation_batch_size", "per_device_eval_batch_size"
DROP_LAST = "trainer.args.dataloader_drop_last"
NAMES = {"BATCH": BATCH, "ROUND": ROUND, "GROUP": "num_generations", "EVALUATED": EVALUATED}
FULL, CRITIC = {"per": 8, "acc": 4, "g": 8, "rows": 3}, {"g": 0, "baseline": "critic"}
EVALUATION = {"per": 8, "g": 4, "eval_strategy": "steps", "num_generations_eval": 8, "processes": 2, EVALUATED: 3}
OTHERS = "at least 2 (a completion is compared with the others of its prompt)"
WHITENED = "at least 2 completions a round: TRL needs them, and advantages are whitened over a round"
TWO = "BATCH=2, or trainer.args.gradient_accumulation_steps=2"
ROWS = "at least 4 rows (32 completions / 8 generations)"
OF_8 = "a multiple of 8: trainer.args.num_generations_eval, else num_generations"


@pytest.mark.fault(40)
@pytest.mark.parametrize(
    ("args", "key", "got", "expected", "to_do"),
    [
        *(({"g": g}, "num_generations", g or 0, OTHERS, None) for g in (1, None)),
        (CRITIC, "num_generations", 0, "at least 1", None),
        (CRITIC | {"per": 1, "g": 1}, BATCH, "1 a device x 1 process x 1 micro-batch", WHITENED, TWO),
        # the nearest sizes of a batch and of a group: 6 are no groups of 4, but 8 are, or 3 and 6, 3 being nearer
        ({"per": 6, "g": 4}, BATCH, "6 a device x 1 process(es) x 1 micro-batches = 6", 4, "BATCH=8 or GROUP=3"),
        ({"per": 3, "g": 4}, BATCH, "3 a device x 1 process(es) x 1 micro-batches = 3", 4, "BATCH=4 or GROUP=3"),
        ({"per": 1, "g": 4}, BATCH, "1 a device x 1 process(es) x 1 micro-batches = 1", 4, "BATCH=4"),
        (  # 10 micro-batches of 6 are 60
            {"per": 5, "acc": 5, "processes": 2, "g": 4},
            *(BATCH, "5 a device x 2 process(es) x 5 micro-batches = 50", 4, "BATCH=6 or GROUP=5"),
        ),
        # a round of whole batches of all processes and of whole groups
        ({"per": 4, "processes": 2, "g": 8, "gbs": 20}, ROUND, "20", (8, 8), "ROUND=24"),
        ({"per": 4, "g": 6, "gbs": 20}, ROUND, "20", (12, 4), "ROUND=24"),
        ({"per": 8, "g": 8, "gbs": 3}, ROUND, "3", (8, 8), "ROUND=8"),
        (EVALUATION, EVALUATED, "3 a device x 2 processes", OF_8, "EVALUATED=4"),
        (FULL, "data", "3 rows", ROWS, f"add rows, or lower trainer.args.{BATCH}"),
        (FULL | {"gbs": 32}, "data", "3 rows", ROWS, f"add rows, or lower trainer.args.{ROUND}"),
    ],
)
def test_numbers_that_do_not_go(args: dict[str, Any], key: str, got: object, expected: Any, to_do: str | None) -> None:
    error = refusal(**args)
    if isinstance(expected, int):
        expected = f"a multiple of trainer.args.num_generations={expected}"
    elif isinstance(expected, tuple):
        expected = f"a multiple of {expected[0]} ({BATCH} x processes = {expected[1]}, and num_generations)"
    if to_do and key != "data":
        to_do = re.sub("(BATCH|ROUND|GROUP|EVALUATED)=", lambda match: f"trainer.args.{NAMES[match[1]]}=", to_do)
    facts = (error.where, error.got, error.expected, error.hint or error.advice)
    assert facts == (key if key == "data" else f"trainer.args.{key}", got, expected, to_do)
    for name, value in re.findall(r"trainer\.args\.(\w+)=(\d+)", error.hint or ""):
        changed = {SHORT.get(short, short): old for short, old in args.items()}
        assert plan(**{**changed, name: int(value)})


def of_rows(write: Write, row: dict[str, object], count: int = 20) -> str:
    write("rows.jsonl", (json.dumps(row) + "\n") * count)
    return "data.path=rows.jsonl"


def test_prompts_that_fill_no_step(write: Write, refused: Refused) -> None:
    """Two prompts with eight answers each; TRL would end at step 0."""
    row = {"prompt": "1+1=", "privileged_context": "2"}
    words = ("trainer=sdft", "data=file", of_rows(write, row, 2), "launch=cpu")
    error = refused(*words, f"trainer.args.{BATCH}=32")
    assert f"trainer.args.{BATCH}" in str(error.advice)
    assert planned(*words, f"trainer.args.{BATCH}=16").stage


@pytest.mark.parametrize(
    ("trl", "rows", "args", "epochs", "steps", "trained_on"),
    [
        *((f"{name}Trainer", 10, {"per": 4}, 1.0, 2, 8) for name in ("Distillation", "GOLD", "IWOPD")),
        ("GKDTrainer", 10, {"per": 4}, 1.0, 3, 10),  # takes rows as they are
        ("DistillationTrainer", 10, {"per": 3, "acc": 2, "epochs": 2.0}, 2.0, 2, 12),
        ("DistillationTrainer", 10, {"per": 3, "acc": 2, "max_steps": 3}, 3.0, 3, 18),
        ("GOLDTrainer", 11, {"per": 4, "acc": 2, "g": 4, "gbs": 2}, 1.0, 5, 40),
        ("SDFTTrainer", 10, {"per": 24}, 1.0, 3, 72),
        ("SDFTTrainer", 10, {"per": 8, "acc": 1, "spg": 3, "iterations": 2}, 1.0, 18, 144),
    ],
)
def test_steps_of_a_trainer_that_answers_prompts_itself(
    trl: str, rows: int, args: dict[str, Any], epochs: float, steps: int, trained_on: int
) -> None:
    """Their sampler is GRPO's, which leaves out the prompts that fill no round: as trained with ten rows."""
    found = stage(trl, rows=rows, **{"acc": 1, "epochs": 1.0, **args})
    assert (found.epochs, found.steps, found.rows) == (epochs, steps, trained_on)


@pytest.mark.parametrize(
    ("args", "key"),
    [
        ({"per": 4}, BATCH),
        ({"per": 8, "eval_strategy": "steps", EVALUATED: 4}, EVALUATED),
        ({"per": 8, "gbs": 12}, ROUND),
    ],
)
def test_groups_of_sdft_are_whole_as_those_of_grpo(args: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        stage("SDFTTrainer", acc=1, **args)
    assert caught.value.where == f"trainer.args.{key}"


@pytest.mark.parametrize(
    ("rows", "args", "epochs", "steps", "trained_on", "says"),
    [
        # 12 rows of 3 processes are a batch: 9 batches of 100 rows, 2 a step, the last step of one
        (100, {"epochs": 2.0}, 2.0, 10, 200, "10, 2 epochs"),
        (100, {"epochs": 1.5, "max_steps": 0}, 1.5, 8, 100 + 3 * 24, "8, 1.5 epochs"),
        (100, {"max_steps": 7}, 7 / 5, 7, 100 + 2 * 24, "7, 1.4 epochs"),
        (100, {"max_steps": 1}, 1 / 5, 1, 24, "1, 0.2 epochs"),
        (100, {"max_steps": 5, "dataloader_drop_last": True}, 5 / 4, 5, 96 + 24, "5, 1.25 epochs"),
        (12, {"epochs": 2.0, "dataloader_drop_last": True}, 2.0, 2, 24, "2, 2 epochs"),
        *((rows, {"packing": True, "max_steps": 7}, None, 7, 7 * 24, "7") for rows in (100, None)),
        (None, {"max_steps": 1}, None, 1, 24, "1"),
        (None, {"max_steps": 0}, None, None, None, "unknown until the data is read"),
        (100, {"packing": True}, None, None, None, "unknown until the data is read"),
    ],
)
def test_steps_of_rows(
    rows: int | None, args: dict[str, Any], epochs: float | None, steps: int | None, trained_on: int | None, says: str
) -> None:
    found = stage(rows=rows, per=4, acc=2, processes=3, **args)
    assert found == StagePlan(4, 3, 2, epochs, steps, trained_on)
    assert (found.describe(), found.describe_steps()) == (
        "4 rows a device x 3 processes x 2 accumulated = 24 a step",
        says,
    )


@pytest.mark.parametrize("experiment", ["toy_reward", "toy_dpo", "toy_sft", "toy_kto"])
def test_the_only_batch_must_not_be_dropped(experiment: str, write: Write, refused: Refused) -> None:
    """Three rows, six for KTO, which makes two of a pair; every process takes a batch of its own."""
    rows = of_rows(write, {"prompt": "1+1=", "completion": "x", "chosen": "1", "rejected": "22"}, 3)
    words = (f"+exp={experiment}", "data=file", rows, "~data.eval", "trainer.args.eval_strategy=no", "launch=cpu")
    words = (*words, "launch.processes=2", "trainer.args.dataloader_drop_last=true", "trainer.args.max_steps=2")
    whole = 3 if experiment == "toy_kto" else 1
    error = refused(*words, f"trainer.args.{BATCH}={whole + 1}")
    assert (error.where, error.hint) == (f"{DROP_LAST} (command line)", f"{DROP_LAST}=false")
    for word in (f"trainer.args.{BATCH}={whole}", str(error.hint)):
        assert planned(*words, word).stage


def test_kto_needs_two_rows_at_a_time() -> None:
    with pytest.raises(ConfigError) as caught:
        stage("KTOTrainer", per=1)
    assert (caught.value.where, caught.value.got) == (f"trainer.args.{BATCH}", 1)
    assert str(caught.value.expected).startswith("at least 2: ")
    assert stage("KTOTrainer", per=2, acc=1).describe() == "2 rows a device x 1 process = 2 a step"
    assert stage(per=1, acc=1).describe() == "1 row a device x 1 process = 1 a step"


def test_a_causal_checkpoint_where_a_reward_model_is_wanted(place: Path, refused: Refused) -> None:
    error = refused("+exp=quickstart", f"rewards.judge={{model: '{model_copy(place / 'judge')}'}}")
    assert ("trainer=reward" in str(error.advice), str(place / "judge") in str(error.advice)) == (True, True)
