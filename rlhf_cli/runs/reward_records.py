"""Read and write what is stored about rewards: failed batches, deviations, measured means, how a model's texts ended.

TRL's RewardTrainer appends the EOS token to plain texts, but its GRPOTrainer passes texts to a reward model without it.
A model that reads its score from the last token then scores the same text in two ways. The record of its training texts
lies beside the weights, so it moves with the model. Nothing here needs torch.
"""

from __future__ import annotations

import json
import os
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rlhf_cli.errors import RunError
from rlhf_cli.numerics.score_scaling import RunningDeviation
from rlhf_cli.runs.run_folder import (
    HELD_OUT,
    REWARD_MODEL,
    RunFolder,
    evaluations_of,
    read_json,
    run_of,
    unreadable,
    write_rows,
)
from rlhf_cli.runs.run_status import is_of_these_weights
from rlhf_cli.text.json_values import section
from rlhf_cli.text.regular_files import lines_of, parse_json, read_object

_ENDINGS = "text_endings.json"
_WITH_EOS = "plain_texts_end_with_eos"
_FORMAT = "training_format.json"
_CONVERSATIONS = "conversations"
BY_REWARDS_OF = " by the rewards of "  # in the label of an evaluation of another model than the run's, by `model.path`
_STATE = "reward_state.json"


def write_training_format(model: Path, *, conversations: bool) -> None:
    """Write whether the training rows were conversations, which go through the chat template."""
    (model / _FORMAT).write_text(json.dumps({_CONVERSATIONS: conversations}) + "\n", encoding="utf-8")


def trained_on_conversations(model: Path) -> bool | None:
    """Return whether a model was trained on conversations; None without a record that can be read."""
    try:
        found = read_object(model / _FORMAT)[_CONVERSATIONS]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if isinstance(found, bool) else None


def write_text_endings(model: Path, *, with_eos: bool) -> None:
    """Write whether plain texts ended with the EOS token; conversations end as their chat template defines."""
    (model / _ENDINGS).write_text(json.dumps({_WITH_EOS: with_eos}) + "\n", encoding="utf-8")


def trained_with_eos(model: str | Path) -> bool | None:
    """Return whether a model's plain training texts ended with EOS; None without a record, as for a hub id.

    Such a model gets texts without EOS, as in TRL's GRPOTrainer. Raise RunError if the record is damaged.
    """
    file = Path(os.path.expanduser(model)) / _ENDINGS
    if not file.exists():
        return None
    known = read_json(file).get(_WITH_EOS)
    if not isinstance(known, bool):
        raise unreadable(file, f"{_WITH_EOS}: {known}")
    return known


@dataclass(frozen=True)
class _StoredMean:
    """The mean over `count` texts in the evaluation `name`; `with_eos`: they ended with the end-of-sequence token."""

    name: str
    time_s: float
    mean: float
    count: int
    with_eos: bool


def mean_reward(model: str, *, with_eos: bool = False, where: str) -> float:
    """Return the mean that `rlhf eval` wrote: over the model's own held-out rows, else in the newest evaluation.

    `with_eos` is how the reward ends its texts. Raise RunError with the command that measures it if there is none.
    """
    folder = Path(model).expanduser().resolve()
    stored = [found for found in _stored_means(evaluations_of(folder)) if found.with_eos == with_eos]
    valid = [found for found in stored if is_of_these_weights(folder, found.time_s)]
    run = run_of(folder)
    if not valid:
        typed = run.typed if run is not None else shlex.quote(os.path.relpath(folder)) if folder.is_dir() else "FOLDER"
        option = "" if (trained_with_eos(model) is True) == with_eos else " --eos" if with_eos else " --no-eos"
        what = "the mean of this reward model has not been measured"
        since = " since the model was written" if stored else ""
        got = f"offset: auto, and no evaluation in {evaluations_of(folder)}{since}"
        hint = f"rlhf eval {typed}" + ("" if run is not None else " --data FILE") + option
        raise RunError(what, where=where, got=got, expected="a file that `rlhf eval` wrote, or a number", hint=hint)
    sets = section(section(run.read_config() if run is not None else {}, "data"), "eval")
    own = {HELD_OUT, *(f"{HELD_OUT}-{name}" for name in sets)}
    means = [found for found in valid if found.name in own] or [max(valid, key=lambda found: found.time_s)]
    return sum(found.mean * found.count for found in means) / sum(found.count for found in means)


def _stored_means(folder: Path) -> Iterator[_StoredMean]:
    for file in folder.glob("*.json"):
        try:
            content: Any = read_object(file)
            if content["kind"] == REWARD_MODEL and BY_REWARDS_OF not in str(content.get("model")):
                found, ended = content["rewards"]["mean"], content.get("with_eos") is True
                mean, count, time_s = float(found["mean"]), int(found["count"]), float(content["time"])
                yield _StoredMean(str(content["name"]), time_s, mean, count, ended)
        except (OSError, ValueError, KeyError, TypeError):
            continue  # a file of another program, or an evaluation without a mean


def write_running(folder: Path, running: Mapping[str, RunningDeviation]) -> None:
    """Write the deviations by reward into a checkpoint's folder."""
    state = {name: asdict(deviation) for name, deviation in running.items()}
    (folder / _STATE).write_text(json.dumps({"running": state}), encoding="utf-8")


def read_running(folder: Path) -> dict[str, RunningDeviation] | None:
    """Return the deviations by reward from a checkpoint's folder, None if it has no such file."""
    file = folder / _STATE
    if not file.is_file():
        return None
    state = json.loads(file.read_text(encoding="utf-8"))["running"]
    return {name: RunningDeviation(**deviation) for name, deviation in state.items()}


def keep_batch(run: RunFolder, name: str, rows: Sequence[Mapping[str, object]]) -> str:
    """Write rows to `failures/NAME.jsonl`, without known secrets, and return the command that scores them again."""
    file = run.path / "failures" / f"{name}.jsonl"
    file.parent.mkdir(exist_ok=True)
    write_rows(file, rows)
    return _replay_command(run, file)


def kept_batches(run: RunFolder) -> dict[str, str]:
    """Return command -> reward and error, one per kept batch, oldest first."""
    files = sorted((run.path / "failures").glob("*.jsonl"), key=lambda file: (file.stat().st_mtime_ns, file.name))
    return {_replay_command(run, file): file.stem for file in files}


def failed_rows(run: RunFolder) -> dict[str, int]:
    """Return reward -> number of rows it failed on without ending the run, from reward_errors.jsonl."""
    counts: Counter[str] = Counter()
    with suppress(OSError):
        for line in lines_of(run.reward_errors):
            with suppress(ValueError, TypeError, KeyError):  # a line cut off by a full disk
                counts[str(parse_json(line)["reward"])] += 1  # type: ignore[index]
    return dict(counts)


def _replay_command(run: RunFolder, file: Path) -> str:
    shown = os.path.join(run.shown, os.path.relpath(file, run.path))
    return f"rlhf score {run.typed} --completions {shlex.quote(shown)}"
