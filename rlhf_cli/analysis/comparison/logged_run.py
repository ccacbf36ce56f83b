"""Read run folders for a comparison, find what differs between runs, and name them by it: `weight=0.5,seed=2`."""

from __future__ import annotations

import collections
import os
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from rlhf_cli.config.schema.reward_sections import gate_text
from rlhf_cli.errors import RunError
from rlhf_cli.evaluation.evaluation_results import read_evaluation
from rlhf_cli.evaluation.scored_pairs import RewardModelEvaluation
from rlhf_cli.runs.metric_arrays import MetricColumns, Wanted, read_columns
from rlhf_cli.runs.metrics_file import reward_names as logged_rewards
from rlhf_cli.runs.run_folder import RunFolder, read_json
from rlhf_cli.runs.run_status import is_of_these_weights, read_status, swept_in
from rlhf_cli.tables.resume_keys import row_of
from rlhf_cli.tables.trl_values import FOLLOW_EVALUATIONS
from rlhf_cli.text.json_values import JsonTree, JsonValue, section

Figures = Mapping[str, float]
"""Map a figure's name -> its mean: `greedy/correct`, `sampled/total`, `pass@4/correct`, `accuracy`."""


def read_figures(folder: RunFolder) -> dict[str, Figures]:
    """Return name of an evaluation -> its figures, newest first; ignore invalid files and those of older weights."""
    read, model = list[tuple[float, str, Figures]](), folder.model.resolve()
    for file in (folder.path / "eval").glob("*.json"):
        try:
            evaluation = read_evaluation(file)
        except (OSError, ValueError):
            continue
        # Another model does not change when the run is resumed.
        if evaluation.heading.is_of_the_run and not is_of_these_weights(model, evaluation.heading.time):
            continue
        figures = {name: figure.mean for name, figure in evaluation.figures() if figure.mean is not None}
        if isinstance(evaluation.measured, RewardModelEvaluation):
            calibration = evaluation.measured.calibration
            figures |= {"log_loss": calibration.log_loss, "ece": calibration.ece}
        read.append((evaluation.heading.time, file.stem, figures))
    return {name: figures for _, name, figures in sorted(read, key=lambda file: (-file[0], file[1]))}


@dataclass(frozen=True)
class LoggedRun:
    """The configuration and the logs of a run.

    `name` shows the differences from the runs read with it. `place` is its path as typed; `folder` is None for a run
    from wandb. `settings` maps dotted key -> value, `choices` config group -> option, `weights` reward -> weight (None
    for a schedule), `evaluations` name -> figures. `swept` are the keys that its sweep varied, as typed.
    """

    name: str
    place: str
    state: str
    step: int
    max_steps: int | None
    settings: Mapping[str, object]
    weights: Mapping[str, float | None]
    trainer: str
    metrics: MetricColumns
    folder: RunFolder | None = None
    reason: str | None = None
    choices: Mapping[str, str] = field(default_factory=dict)
    evaluations: Mapping[str, Figures] = field(default_factory=dict)
    provenance: JsonTree = field(default_factory=dict)
    swept: Sequence[str] = ()

    @property
    def starting_model(self) -> str | None:
        """Return the hash of the weights, or the hub commit, at the start of training; None if it is unknown."""
        seen = section(self.provenance, "starting_model")
        starting = seen.get("weights_sha256") or seen.get("commit")
        return starting if isinstance(starting, str) else None


def read_runs(folders: Iterable[RunFolder], *, wanted: Wanted | None = None) -> tuple[list[LoggedRun], list[RunError]]:
    """Return the readable runs, named by their differences, and the errors of the others."""
    runs: list[LoggedRun] = []
    problems: list[RunError] = []
    swept = cache(swept_in)
    for folder in folders:
        try:
            config, provenance, status = folder.read_config(), read_json(folder.provenance), read_status(folder)
            metrics = read_columns(folder.metrics, wanted)
            run = LoggedRun(
                name=folder.label,
                place=folder.shown,
                folder=folder,
                state=status.state,
                step=max(status.step, metrics.last_step),
                max_steps=status.max_steps,
                reason=status.reason,
                settings=dict(flat(config)),
                choices={key: str(value) for key, value in section(provenance, "choices").items()},
                weights=weights_of(config),
                trainer=str(section(config, "trainer").get("name", "?")),
                metrics=metrics,
                evaluations=read_figures(folder),
                provenance=provenance,
                swept=swept(folder.path.parent),
            )
            runs.append(run)
        except RunError as error:
            problems.append(error)
    return named(runs), problems


def reward_names(runs: Iterable[LoggedRun]) -> list[str]:
    """Return the components that the runs configured or logged, in the order of first occurrence."""
    names = dict.fromkeys(name for run in runs for name in (*run.weights, *logged_rewards([run.metrics])))
    return [name for name in names if name != "truncation"]


def flat(node: JsonValue, prefix: str = "", *, whole_with: str = "") -> Iterator[tuple[str, JsonValue]]:
    """Yield (dotted key, value) for every leaf: a value, a list, an empty section, or one with the key `whole_with`."""
    if isinstance(node, dict) and node and whole_with not in node:
        for name, value in node.items():
            yield from flat(value, f"{prefix}.{name}" if prefix else str(name), whole_with=whole_with)
    else:
        yield prefix, node


def weights_of(config: JsonTree) -> dict[str, float | None]:
    """Return reward -> weight of a configuration, None for a scheduled weight."""
    rewards = section(config, "rewards")
    weights = {name: section(rewards, name).get("weight", 1.0) for name in rewards}
    return {name: float(weight) if isinstance(weight, int | float) else None for name, weight in weights.items()}


_ARGS = "trainer.args."
_SEEDS = ("seed", "data_seed")
_MOST_AXES = 4
_LONGEST_NAME = 60
_DIGITS = (6, 12)
"""Show 6 digits of a fraction if they distinguish the runs, else 12: a search proposes 0.8473095986776095."""
_ABSENT = object()
PRESENT, ABSENT = "yes", "-"
"""The text of `rewards.NAME` in a run that has a reward which others lack, and of a key that a run lacks."""

STEPS, BATCH, DATA, MODEL = "steps", "batch", "data", "model"
_CONDITIONS = {
    **dict.fromkeys((f"{_ARGS}max_steps", f"{_ARGS}num_train_epochs"), STEPS),
    **dict.fromkeys((f"{_ARGS}per_device_train_batch_size", f"{_ARGS}gradient_accumulation_steps"), BATCH),
    **dict.fromkeys(("launch.processes", "launch.nodes"), BATCH),
    **{"data": DATA, "model": MODEL},
}
"""Map a key or a section -> the training condition that it sets."""


@dataclass(frozen=True)
class DifferingKey:
    """A difference between runs: a key, and all keys that change together with it.

    `short` is the shortest unambiguous suffix of the key; `texts` has one value per run. `others` maps each of these
    keys that is in the configuration, including its own, -> its texts.
    """

    key: str
    short: str
    others: Mapping[str, tuple[str, ...]]
    texts: tuple[str, ...]
    is_seed: bool


def is_seed(key: str) -> bool:
    """Return whether a key only changes the random numbers: `seed`, `data.seed`, `model.build.seed`."""
    return key.rpartition(".")[2] in _SEEDS


def condition_of(key: str) -> str | None:
    """Return the training condition that a dotted key sets: STEPS, BATCH, DATA or MODEL; None for any other key."""
    return _CONDITIONS.get(key) or _CONDITIONS.get(key.partition(".")[0])


def differences(runs: Sequence[LoggedRun]) -> list[str]:
    """Return the keys whose value differs between runs, in the order of the configuration, if they affect training.

    A key that was swept is among them, and so is one of evaluations or checkpoints if a run follows or chooses them.
    """
    swept = {key for run in runs for key in run.swept}
    follows = any(run.settings.get(f"{_ARGS}lr_scheduler_type") in FOLLOW_EVALUATIONS for run in runs)
    follows |= any(run.settings.get(f"{_ARGS}load_best_model_at_end") for run in runs)
    harmless = (None,) if follows else (None, "no best is chosen")
    different = []
    for key in dict.fromkeys(key for run in runs for key in run.settings):
        values, row = [run.settings.get(key, _ABSENT) for run in runs], row_of(key)
        is_harmless = row.effect == "taken" and row.only_if in harmless and key not in swept
        if values.count(values[0]) != len(values) and not is_harmless and key.split(".")[0] != "sweep":
            different.append(key)
    return different


def axes(runs: Sequence[LoggedRun]) -> list[DifferingKey]:
    """Return the differences, grouping keys that change together, seeds last.

    A group is named after its swept key, else after a selected config group (`truncation`, `exp`; not `track`, which
    affects nothing) that sets several keys, else after the first key that is not a training condition. Swept keys stay
    separate: in a search they all change in every trial, but independently.
    """
    runs = _with_whole_rewards(runs)
    classes: dict[tuple[tuple[int, ...], bool], list[str]] = {}
    for key in differences(runs):
        values = [repr(run.settings.get(key, _ABSENT)) for run in runs]
        classes.setdefault((_pattern(values), is_seed(key)), []).append(key)
    choices = {key: None for run in runs for key in run.choices if row_of(key).effect != "taken"}
    swept = {key: None for run in runs for key in run.swept}
    heads = {}
    for (pattern, seeds), keys in classes.items():
        chosen = [group for group in choices if _pattern([run.choices.get(group, "") for run in runs]) == pattern]
        varied = [key for key in swept if key in keys or key in chosen]
        own = min(keys, key=lambda key: condition_of(key) is not None)
        head = varied[0] if varied else chosen[0] if chosen and len(keys) > 1 and not seeds else own
        apart = [key for key in varied[1:] if key in keys]
        heads[head] = [key for key in keys if key not in apart]
        heads.update({key: [key] for key in apart})
    axes_found = []
    for head, keys in heads.items():
        others = {key: _texts(runs, key) for key in keys}
        texts = others.get(head) or _texts(runs, head)
        axes_found.append(DifferingKey(head, short_key(head, list(heads)), others, texts, is_seed(head)))
    return sorted(axes_found, key=lambda axis: axis.is_seed)


def _with_whole_rewards(runs: Sequence[LoggedRun]) -> list[LoggedRun]:
    """Return the runs with one key `rewards.NAME` in place of the equal keys of a reward that not every run has."""
    by_run = [{".".join(key.split(".")[:2]) for key in run.settings if key.startswith("rewards.")} for run in runs]
    partial = by_run[0].union(*by_run) - by_run[0].intersection(*by_run)
    values = collections.defaultdict[str, set[str]](set)
    for run in runs:
        for key, value in run.settings.items():
            values[key].add(repr(value))
    whole = []
    for run in runs:
        settings: dict[str, object] = {}
        for key, value in run.settings.items():
            reward = ".".join(key.split(".")[:2])
            settings |= {reward: PRESENT} if reward in partial else {}
            settings |= {key: value} if reward not in partial or len(values[key]) > 1 else {}
        whole.append(replace(run, settings=settings))
    return whole


def named(runs: Sequence[LoggedRun]) -> list[LoggedRun]:
    """Return the runs, named by their differences, else their folders; runs with equal names get these appended."""
    differing = axes(runs) if len(runs) > 1 else []
    names = [",".join(f"{key.short}={key.texts[place]}" for key in differing) for place in range(len(runs))]
    num_keys, longest = sum(not key.is_seed for key in differing), max(map(len, names), default=0)
    places = [run.place for run in runs]
    if len(places) < 2:
        folders = [os.path.join(*place.split(os.sep)[-2:]) if os.sep in place else place for place in places]
    else:
        common = os.path.commonpath(places) if len({os.path.isabs(place) for place in places}) == 1 else ""
        folders = [os.path.relpath(place, common) if common else place for place in places]
    if not differing or num_keys > _MOST_AXES or longest > _LONGEST_NAME:
        names = folders
    else:
        names = [name if names.count(name) == 1 else f"{name} ({folders[place]})" for place, name in enumerate(names)]
    return [replace(run, name=name) for run, name in zip(runs, names, strict=True)]


def short_key(key: str, keys: Sequence[str]) -> str:
    """Return the shortest suffix of a dotted key that is not a suffix of another one."""
    parts = key.split(".")
    for length in range(1, len(parts)):
        short = ".".join(parts[-length:])
        if not any(other != key and (other == short or other.endswith(f".{short}")) for other in keys):
            return short
    return key


def value_text(value: object, digits: int = 12) -> str:
    """Return a value as one would type it: 0.5, none, true; of a path the last part, of a gate the condition."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return f"{value:.{12 if float(value).is_integer() else digits}g}"
    if isinstance(value, list | tuple):
        return f"[{','.join(value_text(entry, digits) for entry in value)}]"
    if isinstance(value, Mapping):
        given = [f"{key}: {value_text(item, digits)}" for key, item in value.items() if item is not None]
        return gate_text(value) if value.get("by") is not None else f"{{{', '.join(given)}}}"
    text = str(value)
    return os.path.basename(text.rstrip("/")) if os.path.isabs(text) else text


def _texts(runs: Sequence[LoggedRun], head: str) -> tuple[str, ...]:
    """Return the value of a key, or the option of a config group, per run; in full if short texts are ambiguous."""
    if not any(head in run.settings for run in runs):
        return tuple(run.choices.get(head, ABSENT) for run in runs)
    values = [run.settings.get(head, _ABSENT) for run in runs]
    different = len(set(map(repr, values)))
    for digits in _DIGITS:
        texts = [ABSENT if value is _ABSENT else value_text(value, digits) for value in values]
        if len(set(texts)) == different:
            return tuple(texts)
    return tuple(ABSENT if value is _ABSENT else str(value) for value in values)


def _pattern(values: Sequence[Hashable]) -> tuple[int, ...]:
    """Return for each run the index of the first run with the same value."""
    first: dict[Hashable, int] = {}
    return tuple(first.setdefault(value, place) for place, value in enumerate(values))
