"""Write a part of docs/development/reliability.md: how many runs were killed, how, and what was lost."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence

from rlhf_cli.errors import EXIT_PREEMPTED
from scripts.chaos.judgement import problems
from scripts.chaos.outcomes import Blow, Broken
from scripts.chaos.small_experiment import STEPS

_HEAD = """## Runs killed at random moments

`make chaos` kills runs and writes this section; here with {seeds}.
A run of {steps} steps of a tiny policy saves at every other step. It is killed at a random moment (`random.Random` with
the seed, over the duration of an undisturbed run); two in five kills hit the next save after that moment. Then `rlhf
status` and `rlhf compare` read the folder, `rlhf resume` continues the run and is killed again, at most four times. The
last resume is left alone and compared with the undisturbed run: hash of the weights, with PPO also the critic's, and
loss, reward and gradient norm of every step. One reward runs in isolated workers, another starts a sandboxed program,
and a third of the runs record for wandb offline.
"""
_RECOVERY = """
Seconds from `rlhf resume` after a kill to the first new step, on a machine that others used too, and the same for
commands that start such a run. Lost steps had been logged and were computed again; saving at every other step limits
them.
""".lstrip()


_VICTIMS = ("command", "rank", "group")
_MOMENTS = ("before a step", "in a save", "elsewhere")


def page(killed: Sequence[Broken], stopped: Sequence[Broken], seeds: Sequence[int]) -> str:
    """Return the section, with a part for each kind of blow."""
    said = f"seed{'s' if len(seeds) > 1 else ''} {' and '.join(map(str, seeds))}"
    parts = [_HEAD.format(seeds=said, steps=STEPS)]
    if killed:
        parts += ["### kill -9\n", *_table_of_kills(killed), _orphans(killed)]
    if stopped:
        parts += ["### SIGTERM, two processes\n", *_table_of_stops(stopped), _orphans(stopped)]
    if killed:
        parts += ["### Recovery\n", *_recovery(killed)]
    return "\n".join(parts)


def _table_of_kills(runs: Sequence[Broken]) -> Iterable[str]:
    yield "The kill hit the command, one of its ranks, or the process groups of the command and all ranks."
    yield '"In a save" means that a staged checkpoint was left behind.\n'
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
    yield "The signal went to the command, to one rank, or to all process groups at once, as schedulers do.\n"
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
    yield f"\n{whole} of {len(runs)} runs ended like the undisturbed run. Other problems:\n"
    broken = [line.partition("\n")[0] for run in runs for line in problems(run)]
    yield "\n".join(f"- {line}" for line in broken or ["no problem"]) + "\n"


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


def _by_case(runs: Sequence[Broken]) -> list[tuple[str, list[Broken]]]:
    """Return (name, runs) of every case, and of all cases if there are several."""
    grouped = _cases(runs)
    return [*grouped, ("all", list(runs))] if len(grouped) > 1 else grouped


def _cases(runs: Sequence[Broken]) -> list[tuple[str, list[Broken]]]:
    names = sorted({run.case for run in runs}, key=lambda name: (name[-1], name))
    return [(_in_words(name), [run for run in runs if run.case == name]) for name in names]


def _in_words(case: str) -> str:
    trainer, _, processes = case.partition("-")
    return f"{trainer.upper()}, {processes} process{'es' if processes != '1' else ''}"


def _fallen(run: Broken, blow: Blow) -> str:
    """Return the phase of the command in which a blow fell. The next command removes an interrupted save of an earlier
    blow.
    """
    has_stepped = blow.ended.first_step_s is not None or (blow is run.blows[0] and blow.step > 0)
    if not has_stepped:
        return "before a step"
    return "in a save" if blow.was_saving else "elsewhere"
