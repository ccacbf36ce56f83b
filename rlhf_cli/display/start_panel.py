"""Print the panel before a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from rlhf_cli.config.expand import truncation_warnings
from rlhf_cli.config.schema.expect_section import expectations_of
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.launch_sections import Slurm
from rlhf_cli.config.schema.reward_sections import Gate, Reward
from rlhf_cli.display.plan_tables import memory_bars, will_not_fit, workload_lines
from rlhf_cli.plan.run_plan import Plan
from rlhf_cli.tables.strategies import STRATEGIES
from rlhf_cli.text.redaction import redacted


def reward_tree(rewards: Mapping[str, Reward], scored_by: Mapping[str, str]) -> Table:
    """Return a table with one line per reward: its name, weight, gates and scorer.

    A reward with several gates is drawn below the first one; all gates are listed.
    """
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("reward", style="bold", no_wrap=True)
    table.add_column("weight", justify="right", no_wrap=True)
    is_gated = any(reward.gates for reward in rewards.values())
    if is_gated:
        table.add_column("only where")
    table.add_column("scored by", overflow="fold")
    for name, branch in _lines(rewards):
        reward = rewards[name]
        args = ", ".join(f"{key}={redacted(str(value))}" for key, value in reward.args.items())
        gates = [Text(", ".join(_gate(gate) for gate in reward.gates))] if is_gated else []
        scored = Text(scored_by[name] + (f" ({args})" if args else ""))
        table.add_row(Text.assemble((branch, "dim"), name), _weight(reward), *gates, scored)
    return table


def _lines(rewards: Mapping[str, Reward]) -> Iterator[tuple[str, str]]:
    """Yield (name, branch) once per reward, each below the one that gates it."""
    below: dict[str | None, list[str]] = {}
    for name, reward in rewards.items():
        by = reward.gates[0].by if reward.gates else None
        below.setdefault(by if by in rewards else None, []).append(name)
    seen: set[str] = set()

    def walk(name: str, branch: str, rest: str) -> Iterator[tuple[str, str]]:
        if name in seen:
            return
        seen.add(name)
        yield name, branch
        gated = below.get(name, [])
        for number, child in enumerate(gated):
            is_last = number == len(gated) - 1
            yield from walk(child, rest + ("└ " if is_last else "├ "), rest + ("  " if is_last else "│ "))

    for name in [*below.get(None, []), *rewards]:
        yield from walk(name, "", "")


def _weight(reward: Reward) -> str:
    weight = reward.weight
    return f"{weight:g}" if isinstance(weight, float) else f"{weight.start:g} to {weight.end:g}"


def _gate(gate: Gate) -> str:
    if gate.between is not None:
        return f"{gate.between[0]:g} <= {gate.by} <= {gate.between[1]:g}"
    tests = ((">=", gate.at_least), ("<=", gate.at_most), ("=", gate.equals))
    return "".join(f"{gate.by} {sign} {value:g}" for sign, value in tests if value is not None)


_MANY_REWARDS = 4
_MOST_LINES = 20
"""Maximum height of the panel at the start of a run; `rlhf check` shows everything."""

_NOT_AT_THE_START = ("batch", "in all", "checkpoints", "passes", "guards", "expected")
_LEFT_OUT_FIRST = (
    "samples",
    "center",
    "margin",
    "dropout",
    "evaluation",
    "track",
    "slurm",
    "processes",
    "kl",
    "critic",
)


def show_start(console: Console, experiment: Experiment, plan: Plan, *, title: str, folder: str | None) -> None:
    """Print what a new run will do in at most twenty lines, then its warnings."""
    facts = {name: line for name, line in _facts(experiment, plan, folder).items() if name not in _NOT_AT_THE_START}
    if plan.evaluations is None:
        facts.pop("evaluation")
    if (too_large := will_not_fit(plan.memory)) is not None:
        facts["memory"] = too_large
    left_out, most_rewards = iter(_LEFT_OUT_FIRST), len(experiment.rewards)

    def panel() -> Panel:
        return _panel(facts, experiment, plan, title, most_rewards)

    while len(console.render_lines(panel(), pad=False)) > _MOST_LINES:
        if most_rewards > _MANY_REWARDS:
            most_rewards -= 1
        elif (name := next(left_out, None)) is not None:
            facts.pop(name, None)
        else:
            break
    console.print(panel())
    _show_warnings(console, experiment, plan)


def show_whole_plan(console: Console, experiment: Experiment, plan: Plan, *, title: str, folder: str | None) -> None:
    """Print the whole plan of an experiment, including its memory.

    `title` names the experiment. `folder` is where it would write, or None if it writes nothing (`rlhf check`).
    """
    facts = _facts(experiment, plan, folder)
    console.print(_panel(facts, experiment, plan, title, len(experiment.rewards), memory_bars(plan.memory)))
    _show_warnings(console, experiment, plan)


def _facts(experiment: Experiment, plan: Plan, folder: str | None) -> dict[str, str]:
    """Return name -> line for all facts about a run except its rewards and memory."""
    rows = f", {plan.num_rows} rows to train on" if plan.num_rows is not None else ""
    facts = {
        "trainer": f"{experiment.trainer.name}  ({experiment.trainer.trl} of TRL, seed {experiment.seed})",
        "model": plan.model,
        "data": plan.data + rows,
        **dict(workload_lines(plan)),
        **dict((*_critic(experiment), *_reward_model(experiment), *_dropout(experiment))),
    }
    if plan.passes is not None:
        facts["passes"] = plan.passes.describe()
    if experiment.rewards:
        facts["guards"] = _guards(experiment)
    if experiment.expect is not None:
        facts["expected"] = _expected(experiment)
    facts["processes"] = f"{plan.processes} ({_device(experiment)})"
    facts |= dict(_launch(experiment))
    if experiment.launch.slurm is not None:
        facts["slurm"] = _slurm(experiment.launch.slurm)
    facts["track"] = plan.tracking.in_words
    return facts | ({"run folder": folder} if folder is not None else {})


def _panel(
    facts: Mapping[str, str],
    experiment: Experiment,
    plan: Plan,
    title: str,
    most_rewards: int,
    memory: RenderableType | None = None,
) -> Panel:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, line in facts.items():
        table.add_row(name, Text(line, "bold red") if name == "memory" else line)
    parts: list[RenderableType] = [table]
    if experiment.rewards:
        shown = dict(list(experiment.rewards.items())[:most_rewards])
        parts += ["", reward_tree(shown, plan.rewards)]
        if (more := len(experiment.rewards) - len(shown)) > 0:
            parts.append(Text(f"and {more} more", style="dim"))
    parts += ["", memory] if memory is not None else []
    hint = None if memory is not None else "[dim]rlhf check shows memory, guards and workload"
    return Panel(Group(*parts), title=Text(title, "bold"), title_align="left", subtitle=hint, expand=False)


def _show_warnings(console: Console, experiment: Experiment, plan: Plan) -> None:
    for warning in plan.machine.warnings:
        console.print(f"[yellow]launch:[/] {warning}", highlight=False)
    for warning in truncation_warnings(experiment):
        console.print(f"[yellow]truncation:[/] {warning}", highlight=False)
    for notice in plan.notices:
        console.print(f"[yellow]{notice.subject}:[/] {notice.text}", highlight=False)
    if plan.tracking.notice is not None:
        console.print(f"[yellow]wandb:[/] {plan.tracking.notice}", highlight=False)


def _critic(experiment: Experiment) -> list[tuple[str, str]]:
    """Return (name, line) for PPO's critic and KL penalty and for the truncation policy, if the experiment has them."""
    lines = []
    critic, kl, truncation = experiment.critic, experiment.kl, experiment.truncation
    if critic is not None:
        body = "own optimizer" if critic.share == "none" else "an adapter on the policy's body"
        wait = f", alone for {critic.warmup_steps} steps" if critic.warmup_steps else ""
        lines.append(("critic", f"{critic.init}, {body}{wait}"))
    if kl is not None:
        adapts = "" if kl.controller == "fixed" else f" at first, towards {kl.controller.target:g}"
        penalty = f"{kl.where}, {kl.form.estimator}, {kl.coef:g}{adapts}"
        lines.append(("kl", penalty if kl.form.needs_reference else "none"))
    if truncation.policy != "none":
        row = truncation.row
        mode = f", {truncation.mode or row.modes[0]}" if row.modes else ""
        size = f" {truncation.penalty:g}" if mode and "penalty" in row.reads else ""
        lines.append(("truncation", f"{row.name}{mode}{size}"))
    return lines


def _reward_model(experiment: Experiment) -> list[tuple[str, str]]:
    """Return (name, line) for a reward model's margin, centring and shown samples."""
    section = experiment.reward_model
    if section is None:
        return []
    margin, said = section.margin, "none"
    if margin is not None and margin.column is not None:
        said = f"column {margin.column}"
    elif margin is not None:
        said = f"{margin.scale:g} x {margin.transform} of {margin.chosen} - {margin.rejected}"
    center = f"scores near 0 by {section.center:g}" if section.center else "scores may lie anywhere"
    shown = "all pairs" if section.show_samples == -1 else f"{section.show_samples} pairs"
    lines = [("margin", said), ("center", center)]
    return [*lines, ("samples", f"{shown} shown at every evaluation and at the end")] if section.show_samples else lines


def _dropout(experiment: Experiment) -> list[tuple[str, str]]:
    """Return (name, line) for how dropout affects the ratio between the policy and its rollout, if it matters."""
    trainer, lora = experiment.trainer, experiment.model.lora
    share = lora.lora_dropout if lora is not None else 0.0
    if not trainer.row.generates:
        return []
    if trainer.disables_dropout:
        unused = f"off: model.lora.lora_dropout={share:g} drops nothing unless trainer.args.disable_dropout=false"
        return [("dropout", unused)] if share else []
    if trainer.baseline == "critic":
        return [("dropout", "on in the update, off in rollout passes: ratios are not 1 where nothing moved, and clip")]
    noisy = "on in every pass, as in TRL: ratios to the rollout are noisy; trainer.args.disable_dropout=true ends it"
    return [("dropout", noisy)] if share else []


def _guards(experiment: Experiment) -> str:
    """Return what would end the run early. A reward's failures count only if its `on_error` tolerates them."""
    guards = experiment.guards
    lines = []
    if guards.no_signal != "off":
        lines.append(f"{guards.no_signal} rounds without a signal")
    if any(reward.on_error != "raise" for reward in experiment.rewards.values()) and guards.max_error_share < 1:
        lines.append(f"a reward failing on over {guards.max_error_share:.0%} of {guards.error_window} rows")
    return f"end the run at {', or '.join([*lines, 'NaN or infinity'])}"


def _expected(experiment: Experiment) -> str:
    """Return the expected numbers of the run and where each is read."""
    expected = expectations_of(experiment.expect).values()
    return "; ".join(f"{one.metric} {one.bound} at {one.place}" for one in expected)


def _device(experiment: Experiment) -> str:
    launch = experiment.launch
    return f"device {launch.device}, precision {launch.precision}"


def _launch(experiment: Experiment) -> list[tuple[str, str]]:
    """Return (name, line) for the sharding strategy and the rollout engine, unless they are the defaults."""
    launch = experiment.launch
    lines = []
    if launch.strategy != "ddp":
        offload = ", what is not being used in the host's memory" if launch.offload else ""
        lines.append(("strategy", f"{launch.strategy}: each has {STRATEGIES[launch.strategy].holds}{offload}"))
    if launch.rollout != "hf":
        gpus = f" on {launch.rollout_gpus} GPUs of its own" if launch.rollout_gpus > 1 else ""
        gpus = " on a GPU of its own" if launch.rollout_gpus == 1 else gpus
        lines.append(("rollout", launch.rollout + gpus))
    return lines


def _slurm(slurm: Slurm) -> str:
    """Return the resources requested from Slurm; the cluster's defaults apply to the rest."""
    names = ("partition", "account", "qos", "time", "gpus_per_node", "cpus_per_task", "mem_gb")
    asked = [f"{name} {value}" for name in names if (value := getattr(slurm, name)) is not None]
    return ", ".join(asked) or "the cluster's defaults"
