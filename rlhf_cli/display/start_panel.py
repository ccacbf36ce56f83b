"""Print the panel before a run."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from rlhf_cli.config.expand import truncation_warnings
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.reward_sections import Reward, gate_text
from rlhf_cli.config.schema.run_sections import entries_of
from rlhf_cli.display.tables import Cell, plain_table
from rlhf_cli.plan.run_plan import Plan
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


_FEWEST_REWARDS = 4
_MOST_LINES = 20
"""Maximum height of the panel at the start of a run; `rlhf check` shows everything."""


def show_start(
    console: Console, experiment: Experiment, plan: Plan, *, title: str, folder: str | None, is_whole: bool = False
) -> None:
    """Print what a new run will do in at most twenty lines, then its warnings; with `is_whole`, the whole plan.

    `title` names the experiment. `folder` is where it would write, or None if it writes nothing (`rlhf check`).
    """
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, line in _facts(experiment, plan, folder, is_whole=is_whole).items():
        table.add_row(name, Text(line, "bold red") if name == "memory" else line)
    memory: list[RenderableType] = []
    if is_whole and plan.memory is not None:
        from rlhf_cli.display.plan_tables import memory_bars

        memory = ["", memory_bars(plan.memory)]
    hint = None if is_whole else "[dim]rlhf check shows memory, guards and workload"
    rewards = list(experiment.rewards.items())
    for most in range(len(rewards), min(len(rewards), _FEWEST_REWARDS) - 1, -1):
        parts: list[RenderableType] = [table]
        if rewards:
            parts += ["", reward_tree(dict(rewards[:most]), plan.rewards, with_args=is_whole)]
            parts += [Text(f"and {len(rewards) - most} more", style="dim")] if most < len(rewards) else []
        shown = Group(*parts, *memory)
        panel = Panel(shown, title=Text(title, "bold"), title_align="left", subtitle=hint, expand=False)
        if is_whole or len(console.render_lines(panel, pad=False)) <= _MOST_LINES:
            break
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
    if truncation.policy != "none":
        facts["truncation"] = truncation.rule.in_words
    facts["processes"] = f"{plan.processes} (device {launch.device}, precision {launch.precision})"
    if launch.strategy != "ddp":
        offload = ", what is not being used in the host's memory" if launch.offload else ""
        facts["strategy"] = f"{launch.strategy}: each has {STRATEGIES[launch.strategy].holds}{offload}"
    if launch.rollout != "hf":
        gpus = "a GPU of its own" if launch.rollout_gpus == 1 else f"{launch.rollout_gpus} GPUs of its own"
        facts["rollout"] = launch.rollout + (f" on {gpus}" if launch.rollout_gpus else "")
    if is_whole and (slurm := launch.slurm) is not None:
        names = ("partition", "account", "qos", "time", "gpus_per_node", "cpus_per_task", "mem_gb")
        asked = [f"{name} {value}" for name in names if (value := getattr(slurm, name)) is not None]
        facts["slurm"] = ", ".join(asked) or "the cluster's defaults"
    if is_whole:
        facts["track"] = plan.tracking.in_words
    elif plan.memory is not None and plan.memory.too_large is not None:
        facts["memory"] = plan.memory.too_large
    return facts | ({"run folder": folder} if folder is not None else {})


def _method_and_workload(experiment: Experiment, plan: Plan) -> dict[str, str]:
    """Return the lines on workload, critic, KL, margin, centring, passes, guards and expectations."""
    from rlhf_cli.display.plan_tables import workload_lines

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
        lines["center"] = f"scores near 0 by {model.center:g}" if model.center else "scores may lie anywhere"
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
        lines["expected"] = "; ".join(f"{one.metric} {one.bound} at {one.place}" for one in expected)
    return lines
