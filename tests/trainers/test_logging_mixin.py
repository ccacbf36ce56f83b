"""Phases, tables and lengths that a trainer reports, where TRL's methods only note what they are given."""

from __future__ import annotations

import logging
import math
from collections import defaultdict, deque
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from datasets import Dataset

from rlhf_cli.runs import heartbeat as phases
from rlhf_cli.runs.heartbeat import Heartbeat
from rlhf_cli.text.redaction import forgetting, remember
from rlhf_cli.trainers.extensions import Extensions
from rlhf_cli.trainers.logging_mixin import LoggingMixin, PreparedLengths
from rlhf_cli.trainers.step_profile import counted_slots

MODEL, REFERENCE = torch.nn.Identity(), torch.nn.Identity()
CALLS: dict[str, tuple[tuple[Any, ...], str]] = {
    "get_batch_samples": (("rows", 3, "cpu"), phases.DATA),
    "_prepare_inputs": (("rows",), phases.DATA),
    "training_step": ((MODEL, "rows", 5), phases.LOSS),
    "compute_loss": ((MODEL, {"input_ids": torch.ones(2, 3)}), phases.FORWARD),
    "_clip_grad_norm": ((MODEL,), phases.CLIPPING),
    "evaluation_loop": (("rows",), phases.EVALUATION),
    "save_model": (("folder", True), phases.SAVING),
    "_save_checkpoint": ((MODEL, "trial"), phases.SAVING),
    "log": (({"eval_loss": 1.0}, 2.0), phases.LOGGING),
    "_generate_and_score_completions": ((["row"],), phases.ROLLOUT),
    "_generate_single_turn": (("ids",), phases.GENERATION),
    "_calculate_rewards": (("rows",), phases.REWARDS),
    "_get_per_token_logps_and_entropies": ((MODEL, "ids"), phases.OLD_LOGPS),
}


def noting(name: str) -> Callable[..., str]:
    def method(self: Any, *given: Any, **_: Any) -> str:
        beats = self.extensions.heartbeat
        self.seen.append((name, given, beats.phases if beats else None, beats.read().is_watched if beats else None))
        print("of TRL")
        MODEL(0)
        return name

    return method


class Trl:
    """Stands for TRL's trainer: each method notes what it is given, and the phase it runs in. It packs into one row."""

    model, ref_model = MODEL, REFERENCE

    def __init__(self, extensions: Extensions) -> None:
        self.extensions, self.seen = extensions, list[Any]()
        self.accelerator = SimpleNamespace(num_processes=1)

    def _prepare_dataset(self, dataset: Dataset, _: Any, args: Any, *more: Any) -> Dataset:
        longest = args.max_length or math.inf
        return dataset.select([0]) if more[0] is True else dataset.filter(lambda row: row["size"] <= longest)


class Logged(LoggingMixin, type("Methods", (Trl,), {name: noting(name) for name in CALLS})):  # type: ignore[misc]
    """A trainer that only logs."""


@pytest.fixture
def beats(tmp_path: Path) -> Heartbeat:
    heartbeat = Heartbeat(tmp_path, 0)
    heartbeat.enter(phases.TRAINING)
    return heartbeat


@torch.no_grad()
def test_each_method_is_called_as_it_is_in_a_phase_of_its_own(beats: Heartbeat) -> None:
    """A model that saves is not watched; a generation shows with each forward pass that it goes on."""
    trainer: Any = Logged(Extensions(heartbeat=beats))
    for name, (given, phase) in CALLS.items():
        assert getattr(trainer, name)(*given) == (None if name == "log" else name)
        is_watched = phase != phases.SAVING
        assert trainer.seen.pop() == (name, given, (phases.TRAINING, phase), is_watched)
        assert beats.phases == (phases.TRAINING,)
    trainer._get_per_token_logps_and_entropies(REFERENCE, "ids")
    with torch.enable_grad():  # within the loss
        assert trainer._get_per_token_logps_and_entropies(MODEL, "ids") == "_get_per_token_logps_and_entropies"
    reference, own = trainer.seen
    assert (reference[2][1:], own[2][1:]) == ((phases.REFERENCE_LOGPS,), ())
    quiet: Any = Logged(Extensions())
    for name, (given, _) in CALLS.items():
        getattr(quiet, name)(*given)
    assert [name for name, *_ in quiet.seen] == list(CALLS)
    quiet.ref_model(0)  # reports to no one


def test_a_reference_that_the_loss_calls_and_a_generation_s_passes_are_seen(beats: Heartbeat, monkeypatch) -> None:
    during: list[tuple[str, ...]] = []
    counted: list[int] = []
    monkeypatch.setattr(beats, "beat", lambda: counted.append(1))
    reference = torch.nn.Sequential(torch.nn.Identity())
    reference[0].register_forward_hook(lambda *_: during.append(beats.phases))
    monkeypatch.setattr(Logged, "ref_model", reference)
    trainer: Any = Logged(Extensions(heartbeat=beats))
    with beats.during(phases.FORWARD):
        reference(torch.ones(1))
        assert beats.phases == (phases.TRAINING, phases.FORWARD)
    assert during == [(phases.TRAINING, phases.FORWARD, phases.REFERENCE_LOGPS)]
    trainer._generate_single_turn("ids")
    MODEL(0)  # outside of a generation
    assert counted == [1]


@pytest.mark.parametrize(("generates", "is_profiled"), [(False, False), (False, True), (True, True)])
def test_tokens_of_rows_are_counted_and_the_profile_is_logged_with_a_loss_and_in_the_end(
    generates: bool, is_profiled: bool
) -> None:
    profile: Any = SimpleNamespace(taken=lambda accelerator: {"time/elapsed_s": 4.0}) if is_profiled else None
    rewards: Any = object() if generates else None
    trainer: Any = Logged(Extensions(profile=profile, rewards=rewards))
    with counted_slots() as slots:
        trainer.compute_loss(*CALLS["compute_loss"][0])
    assert slots.taken() == ((6, 6) if is_profiled and not generates else (0, 0))
    for name in ("loss", "train_runtime", "eval_loss"):
        logs = {name: 1.0}
        trainer.log(logs)
        assert ("time/elapsed_s" in logs) is (is_profiled and name != "eval_loss")
        assert trainer.seen[-1][1] == (logs, None)


def test_what_trl_prints_goes_into_a_file_and_its_tables_hide_secrets(tmp_path: Path, capsys) -> None:
    file = tmp_path / "log.txt"
    trainer: Any = Logged(Extensions(table_log=file))
    shaped = "http://user:word@host"  # of a model or a data set, which only looks like a secret
    trainer._logs = {"prompt": deque([shaped, "a known-value"]), "extra": {"note": deque(["known-value", 1.0])}}
    with forgetting():
        remember("known-value")
        trainer.log({})
    trainer.log({})
    assert file.read_text() == "of TRL\n" * 2
    assert trainer._logs == {"prompt": deque([shaped, "a ***"]), "extra": {"note": deque(["***", 1.0])}}
    Logged(Extensions()).log({})
    assert capsys.readouterr().out == "of TRL\n"


def test_what_an_evaluation_counts_has_the_name_of_its_set() -> None:
    trainer: Any = Logged(Extensions())
    for prefix, expected in (("eval", ["kl", "entropy"]), ("eval_hard_one", ["hard_one_kl", "hard_one_entropy"])):
        trainer._metrics = {"eval": defaultdict(list, kl=[1.0], entropy=[2.0])}
        trainer.evaluation_loop(metric_key_prefix=prefix)
        assert list(trainer._metrics["eval"].items()) == list(zip(expected, [[1.0], [2.0]], strict=True))


def test_rows_that_trl_prepares_are_measured_by_the_name_of_the_data(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "rlhf")
    rows = Dataset.from_list([{"ids": [1] * length, "size": length} for length in (2, 5, 9)])
    args = SimpleNamespace(max_length=5)
    trainer: Any = Logged(Extensions())
    assert len(trainer._prepare_dataset(rows, None, args, "train")) == 2
    assert not hasattr(trainer, "lengths")
    trainer.extensions = Extensions(measured=((), ("ids",)))
    for name in ("train", "hard"):
        assert len(trainer._prepare_dataset(rows, None, args, name)) == 2
    assert list(trainer.lengths) == ["train", "hard"]
    assert [record.message.partition(":")[0] for record in caplog.records] == ["data", "data.eval.hard"]


@pytest.mark.parametrize(
    ("others", "strategy", "limit", "prepared", "expected", "said"),
    [
        (("train",), "", 9, 3, (0, 0), "fits all"),
        (("train",), "", 5, 2, (1, 0), "drops 1 of 3"),
        ((False, None, "train"), "bfd", 5, 2, (1, 0), "drops 1 of 3"),
        ((True, None, "train"), "bfd", 5, 1, (0, 1), "cuts 1 of 3"),
        ((True, None, "train"), "wrapped", 5, 1, (0, 0), "fits all"),
        ((True, None, "train"), "bfd", None, 1, (0, 0), "no max_length"),
    ],
)
def test_a_row_is_as_long_as_its_prompt_and_its_longest_answer_and_packing_drops_none(
    caplog: Any, others: Any, strategy: str, limit: int | None, prepared: int, expected: Any, said: str
) -> None:
    """Rows of 2, 5 and 9 tokens. Packed into one, a longer row is cut, or goes on in the next one."""
    sizes = [(1, 1, 1), (1, 4, 2), (1, 2, 8)]
    rows = [{"p": [0] * p, "yes": [0] * yes, "no": [0] * no, "size": p + max(yes, no)} for p, yes, no in sizes]
    args: Any = SimpleNamespace(max_length=limit, packing_strategy=strategy)
    trainer: Any = Logged(Extensions(measured=(("p",), ("yes", "no"))))
    caplog.set_level(logging.INFO, "rlhf")
    found = trainer._prepare_dataset(Dataset.from_list(rows), None, args, *others)
    lengths = trainer.lengths["train"]
    assert len(found) == prepared
    assert lengths == PreparedLengths(3, 2, 9, limit, *expected)
    assert said in lengths.describe()
    assert [record.levelname for record in caplog.records] == ["WARNING" if any(expected) else "INFO"]
