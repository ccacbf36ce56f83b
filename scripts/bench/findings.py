"""How often the findings of `rlhf why` are right: planted faults that are found, clean runs in which something is said.

    python -m scripts.bench.findings                                    simulated runs alone, a minute or two
    python -m scripts.bench.findings --planted FOLDER                   trains planted faults in toy experiments
    python -m scripts.bench.findings --planted FOLDER --studies RUNS    and reads what scripts/studies have made

Simulated runs are those of planted_faults.py. The thresholds were chosen on even seeds; what is printed is of odd ones.
A clean run counts once a kind, however often it is said; *while it trains* counts what is said at any look, not only at
the end. docs/how-to/diagnosis.md has the tables.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rlhf_cli.analysis.diagnosis.finding import RunSetup
from rlhf_cli.analysis.diagnosis.logged import Log
from rlhf_cli.analysis.diagnosis.run_diagnosis import Watch, look
from rlhf_cli.cli import main as rlhf
from rlhf_cli.runs.metrics_file import Event, read_metrics
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.tables.metrics import FINDING_KINDS
from scripts.bench.planted_faults import CLEAN, FAULTS
from scripts.bench.simulated_logs import simulate

_FRESH = 2001
"""The first odd seed that nobody looked at before the thresholds were as they are."""
_SHORT = ["track=none", "launch=cpu", "trainer.args.save_strategy=no"]
_GRPO = ["+exp=quickstart", "trainer.args.max_steps=24", *_SHORT]
_PPO = ["+exp=toy_ppo", "trainer.args.max_steps=176", *_SHORT]
_48_STEPS = ["trainer.args.max_steps=48"]

REWARDS = """\
import random

def dead(completions, **_):
    return [1.0] * len(completions)

def thirds(completions, **_):
    return [float(len(c) % 3 == 0) for c in completions]

def noise(completions, **_):
    return [random.gauss(0.0, 1.0) for _ in completions]

def fails(completions, **_):
    if random.random() < 0.05 / (1 if len(completions) == 1 else 0.05):
        raise ValueError("the judge said 429")
    return [1.0 + len(c) for c in completions]
"""


def _own(name: str, function: str, more: str) -> str:
    return f"rewards.{name}={{fn: './planted.py:{function}', {more}}}"


PLANTED: dict[str, tuple[str, list[str]]] = {
    "a reward of 1": ("dead_reward", [*_GRPO, "rewards.dead.fn=./planted.py:dead"]),
    "a reward of 1, PPO": ("dead_reward", [*_PPO, "rewards.dead.fn=./planted.py:dead"]),
    "one reward twice": (
        "redundant",
        [*_GRPO, "rewards.one.fn=./planted.py:thirds", "rewards.two.fn=./planted.py:thirds"],
    ),
    "one reward against itself": (
        "redundant",
        [*_GRPO, "rewards.one.fn=./planted.py:thirds", "rewards.two={fn: './planted.py:thirds', weight: -0.5}"],
    ),
    "a gate that no row passes": ("gate", [*_GRPO, "rewards.brevity.gate={by: correct, at_least: 2}"]),
    "a gate that every row passes": ("gate", [*_GRPO, "rewards.brevity.gate={by: correct, at_least: -1}"]),
    "a weight 100 times too large": (
        "one_reward",
        [*_GRPO, _own("one", "thirds", "weight: 0.05"), _own("noise", "noise", "weight: 5")],
    ),
    "5 % of the rows fail": ("reward_errors", [*_GRPO, _own("flaky", "fails", "weight: 0.1, on_error: exclude")]),
    "a temperature of 0.05": ("no_deviation", [*_GRPO, "trainer.args.temperature=0.05", "guards.no_signal=off"]),
    "a temperature of 0.2": ("no_deviation", [*_GRPO, "trainer.args.temperature=0.2", "guards.no_signal=off"]),
    "a learning rate of 1e-9": ("learning", [*_GRPO, "trainer.args.max_steps=60", "trainer.args.learning_rate=1e-9"]),
    "a reward of noise alone": (
        "learning",
        [*_GRPO, "trainer.args.max_steps=60", "trainer.args.learning_rate=1e-5", "~rewards.correct", "~rewards.format",
         "~rewards.brevity", "rewards.noise.fn=./planted.py:noise"],
    ),
    "room for two tokens": ("truncation", [*_GRPO, "trainer.args.max_completion_length=2"]),
    "next to no penalty, a large learning rate": ("kl", [*_PPO, "kl.coef=0.0001", "trainer.args.learning_rate=3e-3"]),
    "a learning rate 20 times too large": ("clipping", [*_PPO, *_48_STEPS, "trainer.args.learning_rate=6e-3"]),
    "a learning rate of 1e-8": ("clipping", [*_PPO, *_48_STEPS, "trainer.args.learning_rate=1e-8"]),
    "a critic that learns too fast": ("explained_variance", [*_PPO, "critic.learning_rate=0.3"]),
}  # fmt: skip
"""Name -> (the kind that is to be found, what is typed): real runs of the toy experiments, seconds each."""

STUDIES_FAULTY = {
    "kl": ("study_overoptimisation/many-0.0001",),
    "overoptimised": ("study_overoptimisation/many-0.0001", "study_overoptimisation/few-0.0001"),
    "truncation": tuple(f"study_truncation/bootstrap_add-{critic}" for critic in ("random", "reward", "warmed")),
}
STUDIES_CLEAN = (
    *(f"study_weights/{which}" for which in ("naive", "mild", "strong", "easy")),
    "study_overoptimisation/many-0.1",
    *(f"study_truncation/{policy}-{critic}" for policy in ("none", "eos_penalty", "soft_overlong")
      for critic in ("random", "reward", "warmed")),
    *(f"study_truncation/bootstrap_replace-{critic}" for critic in ("reward", "warmed")),
)  # fmt: skip


@dataclass
class Rates:
    """Of each kind how many were planted and found, and of clean runs in how many it was said, at the end and ever."""

    planted: Counter[str] = field(default_factory=Counter)
    hits: Counter[str] = field(default_factory=Counter)
    alarms: Counter[str] = field(default_factory=Counter)
    alarms_in_training: Counter[str] = field(default_factory=Counter)
    num_clean: int = 0
    with_any_alarm: int = 0
    with_any_in_training: int = 0
    missed: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def plant(self, name: str, kind: str, events: Sequence[Event], setup: RunSetup) -> None:
        """Count a run in which a fault was planted."""
        is_found = kind in {one.kind for one in look(Log.of(events), setup).findings}
        self.planted[kind] += 1
        self.hits[kind] += is_found
        if not is_found:
            self.missed.append(f"{kind}: {name}")

    def clean(self, name: str, events: Sequence[Event], setup: RunSetup) -> None:
        """Count a run in which nothing is wrong."""
        findings = look(Log.of(events), setup).findings
        watch = Watch(setup, list(FINDING_KINDS), len(events))
        live = {one.kind for step, event in enumerate(events, 1) for one in watch.take(step, event)}
        self.num_clean += 1
        self.alarms.update({one.kind for one in findings})
        self.alarms_in_training.update(live)
        self.with_any_alarm += bool(findings)
        self.with_any_in_training += bool(live)
        self.said += [f"{one.kind} in {name}: {one.what}" for one in findings]
        self.said += [f"{kind} in {name}, while it trained" for kind in live - {one.kind for one in findings}]


def of_simulated(seeds: Iterable[int]) -> Rates:
    """The rates on simulated runs."""
    rates, seeds = Rates(), list(seeds)
    for name, (kind, world) in FAULTS.items():
        for seed in seeds:
            events, config = simulate(world, seed)
            rates.plant(name, kind, events, RunSetup.of(config))
    for name, world in CLEAN.items():
        for seed in seeds:
            events, config = simulate(world, 1000 + seed)
            rates.clean(f"{name}, seed {1000 + seed}", events, RunSetup.of(config))
    return rates


def of_real(planted: Path | None, studies: Path | None, seeds: Sequence[int]) -> Rates:
    """The rates on runs that were trained: those planted here, and those of the studies."""
    rates = Rates()
    for name, kind, folder in trained(planted) if planted is not None else ():
        rates.plant(name, kind, read_metrics(folder.metrics), RunSetup.of(folder.read_config()))
    for kind, places in STUDIES_FAULTY.items():
        for folder in _runs_of(studies, places, seeds):
            rates.plant(folder.label, kind, read_metrics(folder.metrics), RunSetup.of(folder.read_config()))
    for folder in _runs_of(studies, STUDIES_CLEAN, seeds):
        rates.clean(folder.label, read_metrics(folder.metrics), RunSetup.of(folder.read_config()))
    return rates


def trained(root: Path) -> Iterator[tuple[str, str, RunFolder]]:
    """Train every planted fault that `root` does not hold yet; yield (name, kind, run)."""
    root.mkdir(parents=True, exist_ok=True)
    before = Path.cwd()
    os.chdir(root)
    Path("planted.py").write_text(REWARDS, encoding="utf-8")
    try:
        for name, (kind, words) in PLANTED.items():
            called = "".join(letter if letter.isalnum() else "-" for letter in name)
            folder = RunFolder(Path("runs", words[0].partition("=")[2], called).resolve())
            if not folder.metrics.is_file():
                with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as said:
                    code = rlhf(["train", *words, f"run.name={called}"])
                print(f"{name}: exit code {code}", said.getvalue()[-600:] if code else "", flush=True)
            if folder.config.is_file():
                yield name, kind, folder
    finally:
        os.chdir(before)


def _runs_of(studies: Path | None, places: Iterable[str], seeds: Iterable[int]) -> Iterator[RunFolder]:
    if studies is not None:
        for place in places:
            yield from (RunFolder(studies / place / str(seed)) for seed in seeds)


def show(title: str, rates: Rates) -> None:
    """Print the rates as a table of Markdown, and what was missed or said for nothing."""
    clean = rates.num_clean
    print(f"\n{title}: {rates.planted.total()} planted, {clean} clean\n")
    print("| finding | found of planted | false alarms of clean | while it trains |\n|---|---:|---:|---:|")
    for kind in FINDING_KINDS:
        found = f"{rates.hits[kind]}/{rates.planted[kind]}" if rates.planted[kind] else "-"
        alarms = [f"{count[kind]}/{clean}" if clean else "-" for count in (rates.alarms, rates.alarms_in_training)]
        print(f"| `{kind}` | {found} | {' | '.join(alarms)} |")
    any_alarm = [f"{count}/{clean}" for count in (rates.with_any_alarm, rates.with_any_in_training)]
    print(f"| any | {rates.hits.total()}/{rates.planted.total()} | {' | '.join(any_alarm)} |")
    for line, count in Counter(rates.missed).items():
        print(f"  missed  {line}" + (f"  ({count} times)" if count > 1 else ""))
    for line in rates.said:
        print(f"  said    {line}")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--planted", type=Path, help="where real runs with planted faults lie, or are to lie")
    parser.add_argument("--studies", type=Path, help="the runs of scripts/studies")
    parser.add_argument("--seeds", type=int, default=10, help="seeds a simulated world (10); 0: none")
    parser.add_argument("--tuning", action="store_true", help="the half on which thresholds were chosen: even seeds")
    options = parser.parse_args()
    first = 0 if options.tuning else _FRESH
    if options.seeds:
        show("simulated", of_simulated(range(first, first + 2 * options.seeds, 2)))
    if options.planted or options.studies:
        show("real", of_real(options.planted, options.studies, range(first % 2, 10, 2)))


if __name__ == "__main__":
    main()
