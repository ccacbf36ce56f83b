"""Writes docs/chaos.md from what was seen: how many were broken and how, what was lost, and what it costs."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence

from rlhf_cli.errors import EXIT_PREEMPTED
from scripts.chaos.judgement import problems
from scripts.chaos.outcomes import Blow, Broken
from scripts.chaos.save_cost import Cost, medians
from scripts.chaos.small_experiment import STEPS

_HEAD = """# Runs that were broken at random moments

`make chaos` breaks them and writes this page; here with {seeds}.
A run of {steps} steps of a tiny policy saves at every other step. It is struck at a moment that `random.Random` of
the seed draws over the duration of a run that nobody breaks, two in five of the blows in the next save from then on.
What is left is read by `rlhf status` and `rlhf compare`, then `rlhf resume` goes on with it and is struck again, at
most four times. The last resume is left alone, and what comes of it is held against the run that never stopped: the
hash of the weights, for PPO of the critic's too, and loss, reward and gradient norm of every step. One of the rewards
runs in isolated workers, another starts a sandboxed program, and a third of the runs record for wandb offline.
"""
_RECOVERY = """
Seconds from typing `rlhf resume` after a kill to its first new step, on a machine that others used as well: beside them
is the same of commands that begin such a run. Steps lost had been logged and were made once more; a save at every other
step bounds them.
""".lstrip()
_COST = """A checkpoint of {megabytes:.0f} MB, a third of it weights with random values and the rest AdamW's state, is
saved in turn by one trainer in one process, {pairs} times each: ours, which is staged, flushed to the disk, hashed and
renamed, against TRL's `_save_checkpoint` of the same trainer, which leaves it to the page cache. Medians of the
seconds, and of the ratios pair by pair with their range.
"""
_WHY = """
The wall seconds are the disk's: TRL's save returns before anything has reached it. The hash is XXH3 of 128 bits;
SHA-256 took as long as the whole of TRL's save. Of the optimizer's file torch.save leaves out its own CRC-32, which
torch.load never looks at, unless checkpoints are uploaded.
"""
MOST = 1.15
"""The ratio of CPU seconds that a checkpoint may take of a plain save."""
_VICTIMS = ("command", "rank", "group")
_MOMENTS = ("before a step", "in a save", "elsewhere")


def page(
    killed: Sequence[Broken], stopped: Sequence[Broken], costs: Sequence[tuple[Cost, Cost]], seeds: Sequence[int]
) -> str:
    """Return the page, with a section for each that is not empty."""
    said = f"seed{'s' if len(seeds) > 1 else ''} {' and '.join(map(str, seeds))}"
    parts = [_HEAD.format(seeds=said, steps=STEPS)]
    if killed:
        parts += ["## kill -9\n", *_table_of_kills(killed), _orphans(killed)]
    if stopped:
        parts += ["## SIGTERM, two processes\n", *_table_of_stops(stopped), _orphans(stopped)]
    if killed:
        parts += ["## Recovery\n", *_recovery(killed)]
    if costs:
        parts += ["## What a checkpoint costs\n", *_cost(costs)]
    return "\n".join(parts)


def _table_of_kills(runs: Sequence[Broken]) -> Iterable[str]:
    yield "Hit was the process that was typed, one of its ranks, or the process groups of it and of all its ranks."
    yield "A save was cut in two where a staged checkpoint was left.\n"
    yield f"| run | runs | kills | command / rank / group | {' | '.join(_MOMENTS)} | nothing lost |"
    yield "|---|---|---|---|---|---|---|---|"
    for name, of_case in _by_case(runs):
        blows = [blow for run in of_case for blow in run.blows]
        hit = Counter(blow.victim for blow in blows)
        fallen = Counter(_fallen(run, blow) for run in of_case for blow in run.blows)
        whole = sum(len(run.blows) for run in of_case if not problems(run))
        victims = " / ".join(str(hit[victim]) for victim in _VICTIMS)
        moments = " | ".join(str(fallen[moment]) for moment in _MOMENTS)
        yield f"| {name} | {len(of_case)} | {len(blows)} | {victims} | {moments} | {whole} of {len(blows)} |"
    yield ""


def _table_of_stops(runs: Sequence[Broken]) -> Iterable[str]:
    yield "Told was the process that was typed, one rank alone, or all process groups at once, as schedulers do.\n"
    yield "| run | runs | SIGTERMs | command / rank / group | exit 75 | saved where it was | nothing new to save |"
    yield "|---|---|---|---|---|---|---|"
    for name, of_case in _by_case(runs):
        blows = [blow for run in of_case for blow in run.blows]
        hit = Counter(blow.victim for blow in blows)
        left = [blow for blow in blows if blow.ended.code == EXIT_PREEMPTED]
        saved = sum("saved step" in blow.ended.said and blow.checkpoint == blow.step for blow in left)
        nothing = sum("saved step" not in blow.ended.said and blow.checkpoint == blow.step for blow in left)
        victims = " / ".join(str(hit[victim]) for victim in _VICTIMS)
        yield f"| {name} | {len(of_case)} | {len(blows)} | {victims} | {len(left)} | {saved} | {nothing} |"
    blows = [blow for run in runs for blow in run.blows]
    whole = sum(run.result == run.expected for run in runs)
    yield f"\n{whole} of {len(runs)} runs ended as the run that never stopped. What else was not kept:\n"
    broken = [line.partition("\n")[0] for run in runs for line in problems(run)]
    yield "\n".join(f"- {line}" for line in broken or ["nothing"]) + "\n"


def _orphans(runs: Sequence[Broken]) -> str:
    ends = [end for run in runs for end in (*(blow.ended for blow in run.blows), run.last)]
    orphans = sum(len(end.orphans) for end in ends)
    late = max(end.gone_after_s for end in ends)
    return f"Processes left behind: {orphans}. The last was gone {late:.1f} s after the end of its command.\n"


def _recovery(runs: Sequence[Broken]) -> Iterable[str]:
    yield _RECOVERY
    yield "| run | resumes | median s to a step | a new run's | ratio | steps lost, median | most |"
    yield "|---|---|---|---|---|---|---|"
    for name, of_case in _cases(runs):
        pairs = [pair for run in of_case for pair in zip(run.blows, run.commands(), strict=True)]
        took = [after.first_step_s for _, after in pairs if after.first_step_s is not None and after.went_on_from]
        lost = [blow.step - after.went_on_from for blow, after in pairs if after.went_on_from is not None]
        begun = [first for run in of_case if (first := run.blows[0].ended.first_step_s) is not None]
        if not took or not lost:
            continue
        resumes, begins = statistics.median(took), statistics.median(begun) if begun else None
        ratio = f"{begins:.1f} ({len(begun)} of them) | {resumes / begins:.2f}" if begins else "not taken | –"
        yield f"| {name} | {len(took)} | {resumes:.1f} | {ratio} | {statistics.median(lost):g} | {max(lost)} |"
    yield ""


def _cost(costs: Sequence[tuple[Cost, Cost]]) -> Iterable[str]:
    yield _COST.format(megabytes=costs[0][1].num_bytes / 1e6, pairs=len(costs))
    yield "| | ours | TRL's | ratio | range | goal |"
    yield "|---|---|---|---|---|---|"
    for figure, name, goal in (("cpu_s", "CPU s", f"{MOST:.2f}"), ("wall_s", "wall s", "")):
        ours, plain, ratio, low, high = medians(list(costs), figure)
        yield f"| {name} | {ours:.3f} | {plain:.3f} | {ratio:.2f} | {low:.2f}–{high:.2f} | {goal} |"
    yield _WHY


def _by_case(runs: Sequence[Broken]) -> list[tuple[str, list[Broken]]]:
    """Return (what it is called, its runs) of every case, and of all together where there are several."""
    grouped = _cases(runs)
    return [*grouped, ("all", list(runs))] if len(grouped) > 1 else grouped


def _cases(runs: Sequence[Broken]) -> list[tuple[str, list[Broken]]]:
    names = sorted({run.case for run in runs}, key=lambda name: (name[-1], name))
    return [(_in_words(name), [run for run in runs if run.case == name]) for name in names]


def _in_words(case: str) -> str:
    trainer, _, processes = case.partition("-")
    return f"{trainer.upper()}, {processes} process{'es' if processes != '1' else ''}"


def _fallen(run: Broken, blow: Blow) -> str:
    """Return at which moment of its command a blow fell. What an earlier one left of a save is cleared by the next."""
    has_stepped = blow.ended.first_step_s is not None or (blow is run.blows[0] and blow.step > 0)
    if not has_stepped:
        return "before a step"
    return "in a save" if blow.was_saving else "elsewhere"
