"""Run folders without a training: frozen by the front door, their tables of completions written by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow
import pyarrow.parquet

from rlhf_cli.launch.freeze import create_run
from rlhf_cli.plan.prepare import prepare
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.tables.trl_values import ROUND, STEP, TOKENS, TRUNCATED

ONE_GROUP = [
    "+exp=quickstart",
    *("trainer.args.num_generations=4", "trainer.args.per_device_train_batch_size=4", "launch=cpu", "track=none"),
]
"""The rewards of quickstart: correct (weight 1), format (0.5), brevity (0.2); one group of four a round."""


def frozen(place: Path, *words: str, name: str = "hand", max_steps: int | None = 8) -> RunFolder:
    """Return the folder of a run that was not trained."""
    prepared = prepare([*ONE_GROUP, *words, f"run.name={name}", f"run.root={place / 'runs'}"])
    run = create_run(prepared.experiment, prepared.composed, files={})
    if max_steps is not None:
        run.status.write_text(json.dumps({"state": "finished", "step": max_steps, "max_steps": max_steps}))
    return run


def write_table(run: RunFolder, step: int, *, number: int | None = None, **columns: list[object]) -> Path:
    """Write the table of a step: column -> values, `rollout.*` of round `number`, step - 1 by default."""
    num_rows = len(next(iter(columns.values())))
    count = step - 1 if number is None else number
    same: dict[str, object] = {"step": step, "prompt": "1+2=", "advantage": 0.0}
    same |= {ROUND: count, STEP: step - 1, TRUNCATED: False, TOKENS: 3}
    answers = {"completion": [f"answer {row}" for row in range(num_rows)]}
    table = {**{name: [value] * num_rows for name, value in same.items()}, **answers, **columns}
    file = run.path / "completions" / f"completions_{step:05d}.parquet"
    file.parent.mkdir(exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.table(table), file)
    return file
