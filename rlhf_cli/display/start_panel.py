"""Print the panel before a run, and what `rlhf check` and a dry run add: launch, memory, workload."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.filesize import decimal as size
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from rlhf_cli.config.expand import truncation_warnings
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.reward_sections import Reward, gate_text
from rlhf_cli.config.schema.section import entries_of
from rlhf_cli.display.terminal import Cell, facts_grid, plain_table
from rlhf_cli.plan.batches import count
from rlhf_cli.plan.launch_plan import LaunchPlan, as_shell
from rlhf_cli.plan.run_plan import Plan
from rlhf_cli.tables.strategies import STRATEGIES
from rlhf_cli.text.redaction import redacted

if TYPE_CHECKING:
    from rlhf_cli.plan.memory_estimate import MemoryPlan


_SHOWN_FROM = 0.01  # of the total of a moment; smaller parts of its memory are not listed
_MOST_REWARDS = 5
"""More are for `rlhf check`: the panel at the start of a run has at most twenty lines."""


def show_start(
    console: Console, experiment: Experiment, plan: Plan, *, title: str, folder: str | None, is_whole: bool = False
) -> None:
    """Print what a new run will do (`is_whole`: the whole plan), then its warnings. `folder`: where it would write."""
    facts = _facts(experiment, plan, folder, is_whole=is_whole).items()
    parts: list[RenderableType] = [
        facts_grid((name, (line, "bold red" if name == "memory" else "")) for name, line in facts)
    ]
    if rewards := list(experiment.rewards.items()):
        most = len(rewards) if is_whole or len(rewards) <= _MOST_REWARDS else _MOST_REWARDS - 1
        parts += ["", _reward_table(dict(rewards[:most]), plan.rewards, with_args=is_whole)]
        parts += [Text(f"and {len(rewards) - most} more", style="dim")] if most < len(rewards) else []
    if is_whole and plan.memory is not None:
        parts += ["", memory_table(plan.memory)]
    below = None if is_whole else "[dim]rlhf check shows memory, guards and workload"
    panel = Panel(Group(*parts), title=Text(title, "bold"), title_align="left", subtitle=below, expand=False)
    console.print(panel)
    warnings = [("truncation", text) for text in truncation_warnings(experiment)]
    warnings += [(notice.subject, notice.text) for notice in plan.notices]
    warnings += [("wandb", plan.tracking.notice)] if plan.tracking.notice is not None else []
    for subject, text in warnings:
        console.print(f"[yellow]{subject}:[/] {text}")


def _reward_table(rewards: Mapping[str, Reward], scored_by: Mapping[str, str], *, with_args: bool) -> Table:
    """Return a table with one line per reward: its name, weight, gates and scorer."""
    is_gated = any(reward.gates for reward in rewards.values())
    rows: list[list[Cell]] = []
    for name, reward in rewards.items():
        args = ", ".join(f"{key}={redacted(str(value))}" for key, value in reward.args.items() if with_args)
        weight = reward.weight
        shown = f"{weight:g}" if isinstance(weight, float) else f"{weight.start:g} to {weight.end:g}"
        gates = [", ".join(gate_text(gate.model_dump()) for gate in reward.gates)] if is_gated else []
        rows.append([(name, "bold"), shown, *gates, scored_by[name] + (f" ({args})" if args else "")])
    after = [*(["only where"] if is_gated else []), "scored by"]
    return plain_table(["reward"], ["weight"], after, rows=rows, head="dim")


def _facts(experiment: Experiment, plan: Plan, folder: str | None, *, is_whole: bool) -> dict[str, str]:
    trainer, launch, truncation = experiment.trainer, experiment.launch, experiment.truncation
    rows = f", {plan.num_rows} rows to train on" if plan.num_rows is not None else ""
    advantages, slurm, memory = experiment.advantages, launch.slurm, plan.memory
    arguments = ", ".join(f"{name}={value}" for name, value in advantages.args.items()) if advantages else ""
    offload = ", unused parts in the host's memory" if launch.offload else ""
    parts = f"each has {STRATEGIES[launch.strategy].holds}{offload}"
    gpus = "a GPU of its own" if launch.rollout_gpus == 1 else f"{launch.rollout_gpus} GPUs of its own"
    names = ("partition", "account", "qos", "time", "gpus_per_node", "cpus_per_task", "mem_gb")
    given = [f"{name} {value}" for name in names if (value := getattr(slurm, name, None)) is not None]
    facts = {
        "trainer": f"{trainer.name}  ({trainer.trl} of TRL, seed {experiment.seed})",
        "model": plan.model,
        "data": plan.data + rows,
        "not read": ", ".join(plan.unread),
        **(_method_and_workload(experiment, plan) if is_whole else {"steps": plan.describe_steps()}),
        "advantages": f"{advantages.fn}{f'  ({arguments})' if arguments else ''}" if advantages else None,
        "tools": ", ".join([*experiment.tools, *(one.own_class for one in experiment.environments.values())]),
        "generated by": experiment.rollout.fn if experiment.rollout is not None else None,
        "truncation": truncation.rule.in_words if truncation.policy != "none" else None,
        "processes": f"{plan.processes} (device {launch.device}, precision {launch.precision})",
        "strategy": f"{launch.strategy}: {parts}" if launch.strategy != "ddp" else None,
        "rollout": launch.rollout + (f" on {gpus}" if launch.rollout_gpus else "") if launch.rollout != "hf" else None,
        "slurm": ", ".join(given) or "the cluster's defaults" if is_whole and slurm is not None else None,
        "track": plan.tracking.in_words if is_whole else None,
        "memory": memory.too_large if memory is not None and not is_whole else None,
        "run folder": folder,
    }
    return {name: text for name, text in facts.items() if text}


def _method_and_workload(experiment: Experiment, plan: Plan) -> dict[str, str]:
    """Return the lines on workload, critic, KL, margin, centring, passes, guards and expectations."""
    lines = workload_lines(plan)
    critic, kl, model = experiment.critic, experiment.kl, experiment.reward_model
    if critic is not None:
        body = "own optimizer" if critic.share == "none" else "an adapter on the policy's body"
        wait = f", alone for {critic.warmup_steps} steps" if critic.warmup_steps else ""
        lines["critic"] = f"{critic.init}, {body}{wait}"
    if experiment.teacher is not None:
        lines["teacher"] = experiment.teacher.path
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
        lines["expected"] = "; ".join(f"{entry.metric} {entry.bound} {entry.place}" for entry in expected)
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
    """Print every process with its command, logs and resume command. `commands` starts the ranks of each machine."""
    about = "port 0 is replaced by a free one at the start"
    if plan.in_this_process:
        about = "the command itself trains, without other processes"
    elif commands:
        about = "each machine starts its own ranks"
    console.print(Text(f"{describe_launch(plan)}; {about}", style="dim"), soft_wrap=True)
    lines: list[tuple[str, str]] = []
    if plan.server is not None:
        lines.append(("vLLM server", as_shell(plan.server.env, plan.server.argv)))
    lines += commands.items()
    if not plan.in_this_process and not commands:
        lines.append(("every rank", f"export {as_shell(plan.shared)}"))
        lines += [(f"rank {rank}", as_shell(plan.own_env(rank), plan.argv)) for rank in plan.ranks]
    logs = [plan.log, *([plan.server.log] if plan.server else [])]
    for name, line in (*lines, ("log", "  ".join(map(os.path.relpath, logs))), ("resume", plan.resume_command)):
        console.print(Text.assemble((name, "bold"), "  ", line), soft_wrap=True)  # unbroken, so that it can be copied


def _on(gpus: tuple[str, ...]) -> str:
    return f" on GPU{'s' * (len(gpus) > 1)} {', '.join(gpus)}" if gpus else ""


def memory_table(plan: MemoryPlan) -> RenderableType:
    """Return a heading, one line per phase with its peak and the parts of it, and the largest part."""
    from rlhf_cli.plan.memory_estimate import PHASES  # a run that starts has no estimate

    peak = plan.fullest()
    if peak is None:
        return Text(f"memory: not estimated ({plan.unknown})", style="dim")
    capacity = plan.device.num_bytes
    device = f" ({size(capacity)})" if capacity is not None else ""
    holder = "GPU" if plan.device.on_gpu else "process"
    rows: list[list[Cell]] = []
    for moment in filter(None, map(plan.fullest, PHASES)):
        by_size = sorted(moment.parts.items(), key=lambda entry: -entry[1])
        parts = [f"{part} {size(count)}" for part, count in by_size if count >= _SHOWN_FROM * moment.total]
        style = "red" if capacity is not None and moment.total > capacity else ""
        rows.append([(moment.phase, "bold"), (size(moment.total), style), ", ".join(parts)])
    table = plain_table([f"memory of each {holder}{device}"], ["peak"], ["estimated parts"], rows=rows, head="dim")
    table.columns[0].no_wrap = True  # its heading stays in a line; the parts are what is folded
    largest, most = max(peak.parts.items(), key=lambda entry: entry[1])
    below = [Text(f"largest part: {largest}, {most / peak.total:.0%} ({peak.what})", "dim")]
    if plan.leaves_out:
        below.append(Text(f"not counted: {'; '.join(plan.leaves_out)}", "yellow"))
    if plan.too_large is not None:
        below.append(Text(plan.too_large, "bold red"))
    return Group(table, *below)


def workload_lines(plan: Plan) -> dict[str, str]:
    """Return name -> line for the workload of a plan: batch, steps, in all, evaluation, checkpoints."""
    work, stage, batches = plan.workload, plan.stage, plan.batches
    lines: dict[str, str] = {}
    if (sized := batches or stage) is not None:
        lines |= {"batch": sized.describe(), "steps": plan.describe_steps()}
    if stage is not None and work.rows is not None:
        tokens = f", {work.max_tokens:,} tokens at most" if work.max_tokens is not None else ""
        longest = f"; the longest row has {count(work.longest_row, 'token')}" if work.longest_row else ""
        lines["in all"] = f"{count(work.rows, 'row')}{tokens}{longest}"
    if batches is not None and work.completions is not None:
        epochs = f" ({work.epochs:.4g} times the data)" if work.epochs is not None else ""
        tokens = f", {work.max_tokens:,} tokens generated at most" if work.max_tokens is not None else ""
        most = work.longest_prompt
        prompt = f"; the longest prompt has {count(most, 'token')}" if most is not None else ""
        asked = count(work.prompts, "prompt") if work.prompts is not None else "prompts"
        lines["in all"] = f"{count(work.completions, 'completion')} of {asked}{epochs}{tokens}{prompt}"
    if (found := plan.evaluations) is not None:
        rows = count(found.rows, "row") if found.rows is not None else "all held-out rows"
        completions = f", {count(found.completions, 'completion')}" if found.completions is not None else ""
        lines["evaluation"] = f"{found.every}{_times(found.times)}: {rows}{completions}"
    else:
        kept = f"; {count(plan.num_held_out, 'row')} held out, for `rlhf eval`" if plan.num_held_out else ""
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
    return "" if number is None else f", {count(number, 'time')}"
