"""Find the experiment that typed words mean (overrides or a run) and the keys typed beside it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rlhf_cli.config.conf_folders import groups
from rlhf_cli.config.schema.keys import leaves, valid_keys
from rlhf_cli.errors import ConfigError
from rlhf_cli.jobs.prepare import Prepared, prepare, prepare_from
from rlhf_cli.jobs.run_names import find_run, is_run_name
from rlhf_cli.runs.run_folder import RunFolder, open_run
from rlhf_cli.suggest import nearest


@dataclass(frozen=True)
class NamedExperiment:
    """An experiment, given by overrides or by a run, and the keys typed beside it."""

    label: str
    prepared: Prepared
    keys: tuple[str, ...]
    run: RunFolder | None = None


def named_experiment(words: list[str]) -> NamedExperiment:
    """Return the experiment that words mean. A word without `=` is a run or a key of the configuration.

    Raises ConfigError for a word that is neither, ConfigError if no experiment is named, and what `prepare` raises.
    """
    overrides, others = _overrides(words)
    runs = [word for word in others if is_run_name(word) or (Path(word) / "config.yaml").is_file()]
    keys = [word.strip(".") for word in others if word not in runs]
    if len(runs) > 1:
        raise ConfigError("one run at a time", where="command line", got=" ".join(runs), hint="--against RUN")
    if runs:
        word = runs[0]
        run = find_run(word, "runs", where="command line") if is_run_name(word) else open_run(Path(word))
        prepared = prepare_from(run, overrides)
        _refuse_unknown(keys, prepared)
        return NamedExperiment(" ".join([run.shown, *overrides]), prepared, tuple(keys), run)
    if not overrides:
        raise _of_which(keys)
    prepared = prepare(overrides, keep_run_names=True)
    _refuse_unknown(keys, prepared)
    return NamedExperiment(" ".join(overrides), prepared, tuple(keys))


def _overrides(words: Iterable[str]) -> tuple[list[str], list[str]]:
    overrides: list[str] = []
    others: list[str] = []
    for word in words:
        is_override = word.startswith("~") or ("=" in word and not Path(word).is_dir())
        (overrides if is_override else others).append(word)
    return overrides, others


def _of_which(keys: list[str]) -> ConfigError:
    experiments = groups().get("exp", {})
    if keys and keys[0] in experiments:
        return ConfigError(
            f"{keys[0]!r} is an experiment, and is chosen by its group",
            where="command line",
            hint=" ".join([f"+exp={keys[0]}", *keys[1:]]),
        )
    close = nearest(keys[0], experiments) if keys and keys[0] not in valid_keys([]) else None
    return ConfigError(
        "of which experiment?",
        where="command line",
        got=" ".join(keys) or "no words",
        expected="+exp=NAME, a run folder or run:NAME",
        hint=" ".join([f"+exp={close}"] if close else ["+exp=quickstart", *keys]) + ", or rlhf list exp",
    )


def _refuse_unknown(keys: list[str], prepared: Prepared) -> None:
    """Raise ConfigError for a word that is not a key of this configuration."""
    known = [key for key, _ in leaves(prepared.as_written.model_dump(mode="json"))]
    for key in keys:
        if key in known:
            continue
        if key in groups().get("exp", {}):
            raise ConfigError(f"{key!r} is an experiment", where="command line", hint=f"--against {key}")
        ends = {name.rpartition(".")[2]: name for name in known}
        close = ends.get(key) or nearest(key, [*known, *ends])
        raise ConfigError(
            f"there is no key {key!r} in this configuration",
            where="command line",
            expected="a section or key, such as " + ", ".join(name for name in known if "." not in name),
            hint=ends.get(close or "", close),
        )
