"""Print the panel before a run, and what `rlhf check` and a dry run add: launch, memory, workload."""

from __future__ import annotations

import os
from collections.abc import Mapping

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from rlhf_cli.config.expand import truncation_warnings
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.reward_sections import Reward, gate_text
from rlhf_cli.config.schema.run_sections import entries_of
from rlhf_cli.display.tables import Cell, facts_grid, plain_table
from rlhf_cli.plan.batches import count
from rlhf_cli.plan.launch_plan import LaunchPlan, as_shell
from rlhf_cli.plan.memory_estimate import PHASES, MemoryPlan
from rlhf_cli.plan.run_plan import Plan
from rlhf_cli.runs.disk_space import size
from rlhf_cli.tables.strategies import STRATEGIES
from rlhf_cli.text.redaction import redacted


def reward_tree(rewards: Mapping[str, Reward], scored_by: Mapping[str, str], *, with_args: bool = True) -> Table:
    """Return a table with one line per reward: its name, weight, gates and scorer."""
    is_gated = any(reward.gates for reward in rewards.values())
    rows: list[list[Cell]] = []
    for name, reward in rewards.items():
        args = ", ".join(f"{key}={redacted(str(value))}" for key, value in reward.args.items() if with_args)
        weight = reward.weight
        shown = f"{weight:g}" if isinstance(weight, float) else f"{weight.start:g} to {weight.end:g}"
        gates = [", ".join(gate_text(gate.model_dump()) for gate in reward.gates)] if is_gated else []
        rows.append([(name, "bold"), shown, *gates, scored_by[name] + (f" ({args})" if args else "")])
    return plain_table(
        ["reward"], ["weight"], [*(["only where"] if is_gated else []), "scored by"], rows=rows, head="dim"
    )


_MOST_REWARDS = 5
"""More are for `rlhf check`: the panel at the start of a run has at most twenty lines."""


def show_start(
    console: Console, experiment: Experiment, plan: Plan, *, title: str, folder: str | None, is_whole: bool = False
) -> None:
    """Print what a new run will do in at most twenty lines, then its warnings; with `is_whole`, the whole plan.

    `title` names the experiment. `folder` is where it would write, or None if it writes nothing (`rlhf check`).
    """
    facts = _facts(experiment, plan, folder, is_whole=is_whole).items()
    parts: list[RenderableType] = [
        facts_grid((name, (line, "bold red" if name == "memory" else "")) for name, line in facts)
    ]
    if rewards := list(experiment.rewards.items()):
        most = len(rewards) if is_whole or len(rewards) <= _MOST_REWARDS else _MOST_REWARDS - 1
        parts += ["", reward_tree(dict(rewards[:most]), plan.rewards, with_args=is_whole)]
        parts += [Text(f"and {len(rewards) - most} more", style="dim")] if most < len(rewards) else []
    if is_whole and plan.memory is not None:
        parts += ["", memory_table(plan.memory)]
    hint = None if is_whole else "[dim]rlhf check shows memory, guards and workload"
    panel = Panel(Group(*parts), title=Text(title, "bold"), title_align="left", subtitle=hint, expand=False)
    console.print(panel)
    warnings = [("truncation", text) for text in truncation_warnings(experiment)]
    warnings += [(notice.subject, notice.text) for notice in plan.notices]
    warnings += [("wandb", plan.tracking.notice)] if plan.tracking.notice is not None else []
    for subject, text in warnings:
        console.print(f"[yellow]{subject}:[/] {text}", highlight=False)


def _facts(experiment: Experiment, plan: Plan, folder: str | None, *, is_whole: bool) -> dict[str, str]:
    """Return name -> line for the facts about a run, except its rewards: the most important ones, or all."""
    trainer, launch, truncation = experiment.trainer, experiment.launch, experiment.truncation
    rows = f", {plan.num_rows} rows to train on" if plan.num_rows is not None else ""
    facts = {
        "trainer": f"{trainer.name}  ({trainer.trl} of TRL, seed {experiment.seed})",
        "model": plan.model,
        "data": plan.data + rows,
    }
    if plan.unread:
        facts["not read"] = ", ".join(plan.unread)
    if is_whole:
        facts |= _method_and_workload(experiment, plan)
    else:
        facts["steps"] = plan.describe_steps()
    if experiment.advantages is not None:
        arguments = ", ".join(f"{name}={value}" for name, value in experiment.advantages.args.items())
        facts["advantages"] = f"{experiment.advantages.fn}{f'  ({arguments})' if arguments else ''}"
    if truncation.policy != "none":
        facts["truncation"] = truncation.rule.in_words
    facts["processes"] = f"{plan.processes} (device {launch.device}, precision {launch.precision})"
    if launch.strategy != "ddp":
        offload = ", unused parts in the host's memory" if launch.offload else ""
        facts["strategy"] = f"{launch.strategy}: each has {STRATEGIES[launch.strategy].holds}{offload}"
    if launch.rollout != "hf":
        gpus = "a GPU of its own" if launch.rollout_gpus == 1 else f"{launch.rollout_gpus} GPUs of its own"
        facts["rollout"] = launch.rollout + (f" on {gpus}" if launch.rollout_gpus else "")
    if is_whole and (slurm := launch.slurm) is not None:
        names = ("partition", "account", "qos", "time", "gpus_per_node", "cpus_per_task", "mem_gb")
        given = [f"{name} {value}" for name in names if (value := getattr(slurm, name)) is not None]
        facts["slurm"] = ", ".join(given) or "the cluster's defaults"
    if is_whole:
        facts["track"] = plan.tracking.in_words
    elif plan.memory is not None and plan.memory.too_large is not None:
        facts["memory"] = plan.memory.too_large
    return facts | ({"run folder": folder} if folder is not None else {})


def _method_and_workload(experiment: Experiment, plan: Plan) -> dict[str, str]:
    """Return the lines on workload, critic, KL, margin, centring, passes, guards and expectations."""
    lines = workload_lines(plan)
    critic, kl, model = experiment.critic, experiment.kl, experiment.reward_model
    if critic is not None:
        body = "own optimizer" if critic.share == "none" else "an adapter on the policy's body"
        wait = f", alone for {critic.warmup_steps} steps" if critic.warmup_steps else ""
        lines["critic"] = f"{critic.init}, {body}{wait}"
    if kl is not None:
        adapts = "" if kl.controller == "fixed" else f" at first, towards {kl.controller.target:g}"
        penalty = f"{kl.where}, {'k1' if kl.where == 'reward' else 'k3'}, {kl.coef:g}{adapts}"
        lines["kl"] = "none" if kl.where == "none" else penalty
    if model is not None:
        lines["margin"] = "none"
        if (margin := model.margin) is not None:
            scores = f"{margin.scale:g} x {margin.transform} of {margin.chosen} - {margin.rejected}"
            lines["margin"] = scores if margin.column is None else f"column {margin.column}"
        lines["center"] = f"scores near 0 by {model.center:g}" if model.center else "no, scores may have any mean"
    if plan.passes is not None:
        lines["passes"] = plan.passes.describe()
    if experiment.rewards:
        guards = experiment.guards
        ends = [f"{guards.no_signal} rounds without a signal"] if guards.no_signal != "off" else []
        tolerates = any(reward.on_error != "raise" for reward in experiment.rewards.values())
        if tolerates and guards.max_error_share < 1:
            ends.append(f"a reward failing on over {guards.max_error_share:.0%} of {guards.error_window} rows")
        lines["guards"] = f"end the run at {', or '.join([*ends, 'NaN or infinity'])}"
    if experiment.expect is not None:
        expected = entries_of(experiment.expect).values()
        lines["expected"] = "; ".join(f"{entry.metric} {entry.bound} at {entry.place}" for entry in expected)
    return lines


def describe_launch(plan: LaunchPlan) -> str:
    """Return the plan in one line: `2 ranks on GPUs 0, 1, a vLLM server on GPU 2`."""
    if plan.group is not None:
        return f"rank {plan.group.rank} of {plan.world_size}, which a launcher started" + _on(plan.gpus)
    if plan.in_this_process:
        return "1 process, the command itself" + _on(plan.gpus)
    machines = f" on each of {plan.num_nodes} machines" if plan.num_nodes > 1 else ""
    ranks = count(len(plan.ranks), "rank") + machines + _on(plan.gpus)
    return ranks + (f", a vLLM server{_on(plan.server.gpus)}" if plan.server else "")


def show_launch(console: Console, plan: LaunchPlan, commands: dict[str, str]) -> None:
    """Print every process with its command, the log files and the resume command.

    `commands` maps a machine of several to what starts the ranks there.
    """
    about = "port 0 is replaced by a free one at the start"
    if plan.in_this_process:
        about = "the command itself trains, without other processes"
    elif commands:
        about = "each machine starts its own ranks"
    console.print(Text(f"{describe_launch(plan)}; {about}", style="dim"), soft_wrap=True)
    if plan.server is not None:
        _say(console, "vLLM server", as_shell(plan.server.env, plan.server.argv))
    for machine, command in commands.items():
        _say(console, machine, command)
    if not plan.in_this_process and not commands:
        _say(console, "every rank", f"export {as_shell(plan.shared)}")
        for rank in plan.ranks:
            own = {name: value for name, value in rank.env.items() if name not in plan.shared}
            _say(console, f"rank {rank.rank}", as_shell(own, rank.argv))
    logs = [plan.log, *([plan.server.log] if plan.server else [])]
    _say(console, "log", "  ".join(os.path.relpath(log) for log in logs))
    _say(console, "resume", plan.resume_command)


def _on(gpus: tuple[str, ...]) -> str:
    if not gpus:
        return ""
    return (" on GPU " if len(gpus) == 1 else " on GPUs ") + ", ".join(gpus)


def _say(console: Console, name: str, line: str) -> None:
    """Print a line without hard breaks, so that it can be copied."""
    console.print(Text.assemble((name, "bold"), "  ", line), soft_wrap=True, highlight=False)


_SHOWN_FROM = 0.01
"""Fraction of the moment's total. Smaller parts are not listed."""


def memory_table(plan: MemoryPlan) -> RenderableType:
    """Return a heading, one line per phase with its peak and the parts of it, and the largest part."""
    peak = plan.peak
    if peak is None:
        return Text(f"memory: not estimated ({plan.unknown})", style="dim")
    capacity = plan.device.num_bytes
    device = f" ({_size(capacity)})" if capacity is not None else ""
    holder = "GPU" if plan.device.on_gpu else "process"
    rows: list[list[Cell]] = []
    for moment in filter(None, map(plan.fullest, PHASES)):
        by_size = sorted(moment.parts.items(), key=lambda entry: -entry[1])
        parts = [f"{part} {_size(count)}" for part, count in by_size if count >= _SHOWN_FROM * moment.total]
        style = "red" if capacity is not None and moment.total > capacity else ""
        rows.append([(moment.phase, "bold"), (_size(moment.total), style), ", ".join(parts)])
    table = plain_table([f"memory of each {holder}{device}"], ["peak"], ["estimated parts"], rows=rows, head="dim")
    largest, most = max(peak.parts.items(), key=lambda entry: entry[1])
    below = [Text(f"largest part: {largest}, {most / peak.total:.0%} ({peak.what})", "dim")]
    if plan.leaves_out:
        below.append(Text(f"not counted: {'; '.join(plan.leaves_out)}", "yellow"))
    if plan.too_large is not None:
        below.append(Text(plan.too_large, "bold red"))
    return Group(table, *below)


def _size(num_bytes: int) -> str:
    """Format a size with three digits. An estimate has no more precision."""
    number, unit = size(num_bytes).split()
    return f"{float(number):.3g} {unit}" if float(number) < 1000 else f"{number} {unit}"


def workload_lines(plan: Plan) -> dict[str, str]:
    """Return name -> line for the workload of a plan: batch, steps, in all, evaluation, checkpoints."""
    work, stage, batches = plan.workload, plan.stage, plan.batches
    lines: dict[str, str] = {}
    if stage is not None:
        lines |= {"batch": stage.describe(), "steps": plan.describe_steps()}
        if work.rows is not None:
            tokens = f", {_tokens(work.max_tokens)} at most" if work.max_tokens is not None else ""
            longest = f"; the longest row has {count(work.longest_row, 'token')}" if work.longest_row else ""
            lines["in all"] = f"{work.rows} rows{tokens}{longest}"
    if batches is not None:
        lines |= {"batch": batches.describe(), "steps": plan.describe_steps()}
        if work.completions is not None:
            epochs = f" ({work.epochs:.4g} times the data)" if work.epochs is not None else ""
            tokens = f", {_tokens(work.max_tokens)} generated at most" if work.max_tokens is not None else ""
            most = work.longest_prompt
            prompt = f"; the longest prompt has {count(most, 'token')}" if most is not None else ""
            lines["in all"] = f"{work.completions} completions of {work.prompts} prompts{epochs}{tokens}{prompt}"
    if (found := plan.evaluations) is not None:
        rows = f"{found.rows} rows" if found.rows is not None else "all held-out rows"
        completions = f", {found.completions} completions" if found.completions is not None else ""
        lines["evaluation"] = f"{found.every}{_times(found.times)}: {rows}{completions}"
    else:
        kept = f"; {plan.num_held_out} rows are held out, for `rlhf eval`" if plan.num_held_out else ""
        lines["evaluation"] = f"none in training{kept}"
    lines["checkpoints"] = "none, only the final model"
    if (saved := plan.checkpoints) is not None:
        how_large = "; their size is known after the model is downloaded"
        if saved.checkpoint_bytes is not None and saved.model_bytes is not None:
            at_once = f", at most {saved.at_once} at a time" if saved.at_once else ""
            how_large = f": {size(saved.checkpoint_bytes)} each{at_once}; the final model {size(saved.model_bytes)}"
        lines["checkpoints"] = f"{saved.every}{_times(saved.times)}{how_large}"
    return lines


def _times(number: int | None) -> str:
    return "" if number is None else ", once" if number == 1 else f", {number} times"


def _tokens(number: int) -> str:
    """Return `61 thousand tokens`, rounded up, because it follows "at most"."""
    for unit, name in ((10**9, " thousand million"), (10**6, " million"), (10**3, " thousand")):
        if number >= 10 * unit:
            return f"{-(-number // unit)}{name} tokens"
    return f"{number} tokens"
