"""Create a wandb view that compares runs: raw rewards first, grouped by the settings that differ."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rlhf_cli.errors import UserError
from rlhf_cli.runs.metrics_file import TOTAL, read_metrics, reward_names
from rlhf_cli.runs.run_folder import RunFolder, read_json
from rlhf_cli.runs.tracking.contents import is_held_out
from rlhf_cli.runs.tracking.sending import check_server
from rlhf_cli.runs.tracking.tracking_plan import STEP, flat, shown_name
from rlhf_cli.runs.tracking.wandb_files import unsent

if TYPE_CHECKING:
    import wandb_workspaces.reports.v2.interface as wr
    import wandb_workspaces.workspaces as ws

_NEVER_A_DIFFERENCE = ("run.", "track.", "launch.")
_SEEDS = ("seed", "data.seed")
_MOST_RUNS = 100
_KLS = ("kl", "kl/k1_policy_ref", "kl/k3_policy_ref", "kl/coef", "ppo/approx_kl_k3_old_new")
_LENGTHS = ("completions/mean_length", "completions/clipped_ratio", "rewards/truncation/fraction")
_LEARNING = ("loss", "entropy", "grad_norm", "learning_rate", "accuracy", "mean_token_accuracy", "rewards/accuracies")


def make_view(entity: str | None, project: str, group: str | None, runs: Sequence[RunFolder]) -> str:
    """Save a view of these runs in wandb and return its address; `entity` None means the login's default.

    Raises UserError if the package is not installed, there is no login, the server does not answer, or the runs were
    not sent.
    """
    if importlib.util.find_spec("wandb_workspaces") is None:
        raise UserError(
            "a wandb view needs wandb-workspaces, which is not installed",
            hint="pip install 'rlhf-cli[wandb-view]'",
        )
    if waiting := [run.shown for run in runs if unsent(run.path)]:
        raise UserError(
            f"{len(waiting)} of {len(runs)} runs are not in wandb yet",
            got=", ".join(waiting[:3]) + (", ..." if len(waiting) > 3 else ""),
            expected="runs that were sent: a view shows the server's data",
            hint=f"rlhf sync {' '.join(waiting[:3])}{' ...' if len(waiting) > 3 else ''}",
        )
    check_server()
    saved = build_view(entity or _default_entity(), project, group, runs).save()
    return str(saved.url)


def build_view(entity: str, project: str, group: str | None, runs: Sequence[RunFolder]) -> ws.Workspace:
    """Return the unsaved view, without network access.

    With a group it shows all runs of the group, including later ones; otherwise only these runs.
    """
    import wandb_workspaces.workspaces as ws
    from wandb_workspaces import expr

    differing = what_differs(runs)
    has_seeds = any(key in _SEEDS for key in differing)
    swept = [key for key in differing if key not in _SEEDS]
    ids = [str(read_json(run.provenance).get("wandb_id")) for run in runs]
    logged = list(dict.fromkeys(name for run in runs for event in read_metrics(run.metrics) for name in event))
    sections = _sections(logged, weights_differ=any(key.endswith(".weight") for key in swept))
    # wandb's run table names a key of the configuration `rewards.value.brevity.weight`.
    parts = [key.partition(".") for key in differing]
    columns = [f"config:{first}.value{dot}{rest}" for first, dot, rest in parts]
    columns += [f"summary:final/{shown_name(metric)}" for metric in _judged(logged)]
    return ws.Workspace(
        entity=entity,
        project=project,
        name=f"rlhf: {group}" if group else f"rlhf: {len(runs)} runs",
        sections=[section for section in sections if section.panels],
        settings=ws.WorkspaceSettings(x_axis=STEP, max_runs=_MOST_RUNS),
        runset_settings=ws.RunsetSettings(
            filters=f"Group = {group!r}" if group else f"ID in {ids!r}",
            groupby=[expr.Config(key) for key in swept] if has_seeds else [],
            pinned_columns=["run:displayName", *columns],
        ),
    )


def what_differs(runs: Sequence[RunFolder]) -> list[str]:
    """Return the configuration keys that differ between the runs, except where and how they ran."""
    settings = [flat(run.read_config()) for run in runs]
    keys = dict.fromkeys(key for config in settings for key in config)
    absent = object()
    return [
        key
        for key in keys
        if not key.startswith(_NEVER_A_DIFFERENCE)
        and any(config.get(key, absent) != settings[0].get(key, absent) for config in settings)
    ]


def _sections(logged: Sequence[str], *, weights_differ: bool) -> list[ws.Section]:
    import wandb_workspaces.reports.v2.interface as wr
    import wandb_workspaces.workspaces as ws

    def panels(metrics: Sequence[str], titles: Sequence[str] = ()) -> list[wr.PanelTypes]:
        names = zip(metrics, titles or metrics, strict=True)
        return [wr.LinePlot(x=STEP, y=[shown_name(name)], title=title) for name, title in names if name in logged]

    components = _components(logged)
    raw = [f"rewards/{name}/mean" for name in components]
    shares = [f"rewards/{name}/advantage_share" for name in components]
    held_out = _held_out(logged)
    total = "total reward (weights differ: not comparable)" if weights_differ else "total reward"
    names = ["completions_history", "evaluation_answers"] if components else []
    tables: list[wr.PanelTypes] = [
        wr.WeavePanelSummaryTable(table_name=name, layout=wr.Layout(w=24, h=12)) for name in names
    ]
    return [
        ws.Section(name="rewards, raw", panels=panels(raw, components), is_open=True, pinned=True),
        ws.Section(name="held out", panels=panels(held_out), is_open=True),
        ws.Section(name=total, panels=panels([TOTAL, "reward_std"]), is_open=not weights_differ),
        ws.Section(name="KL", panels=panels(_KLS), is_open=True),
        ws.Section(name="lengths and truncation", panels=panels(_LENGTHS), is_open=True),
        ws.Section(name="shares of the advantage", panels=panels(shares, components)),
        ws.Section(name="learning", panels=panels(_LEARNING)),
        ws.Section(name="completions", panels=tables),
    ]


def _components(logged: Sequence[str]) -> list[str]:
    return reward_names([dict.fromkeys(logged, 0.0)])


def _judged(logged: Sequence[str]) -> list[str]:
    raw = [f"rewards/{name}/mean" for name in _components(logged)]
    return [*raw, *_held_out(logged)] or [name for name in _LEARNING[:1] if name in logged]


def _held_out(logged: Sequence[str]) -> list[str]:
    return [name for name in logged if is_held_out(name) and not name.endswith(("/low", "/high"))]


def _default_entity() -> str:
    import wandb

    entity = wandb.Api().default_entity
    if not entity:
        raise UserError("wandb knows no default entity of this login", hint="track.entity=TEAM, or --entity TEAM")
    return str(entity)
