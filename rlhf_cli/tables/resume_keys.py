"""List what may be changed when a run is resumed: one row per key or section, the first match counts.

The run must equal one that was never interrupted, so a change is refused unless it is known not to affect the result.
Most others can be allowed (`--allow KEY`), except those that the checkpoint's values would silently override.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rlhf_cli.tables.trl_trainers import READ_BY_ALGORITHMS

Effect = Literal["taken", "by name", "never"]
Condition = Literal[
    "steps do not shape the run", "no best is chosen", "as many processes", "steps alone set the learning rate"
]


@dataclass(frozen=True)
class ResumeRow:
    """The effect of a change, and the `reason` to show. `keys` include all keys below them; a final `*` is any suffix.

    `taken`: the change does not affect training. `by name`: it does, and applies from now on if `--allow` has its key.
    `never`: the checkpoint would override it, or not fit. `only_if` is the condition under which a change is taken, a
    name in launch/resuming.py; if it is false, the change is `by name`, or with `else_never`, never taken.
    """

    keys: str
    effect: Effect
    reason: str
    only_if: Condition | None = None
    else_never: bool = False

    def fits(self, key: str) -> bool:
        """Return whether this row applies to a dotted key."""
        ours = self.keys.split()
        return any(key.startswith(one[:-1]) if one[-1] == "*" else f"{key}.".startswith(f"{one}.") for one in ours)


_ARGS = "trainer.args."
_STEPS = "more steps of the same run"
_SAVING = "it controls when checkpoints are written and how many stay"
_LOGGING = "it controls what is logged and when"
_EVALUATING = "an evaluation has random numbers of its own and changes no weight"
_COUNTED = "finished rows are counted in batches: another size would lose or repeat rows"
_LOADED = "the value in the checkpoint overrides it"
_WEIGHTS = "the weights in the checkpoint do not fit another model"

RESUME_KEYS: tuple[ResumeRow, ...] = (
    ResumeRow(f"{_ARGS}max_steps {_ARGS}num_train_epochs", "taken", _STEPS, only_if="steps do not shape the run"),
    ResumeRow(f"{_ARGS}save_only_model", "taken", _SAVING),
    ResumeRow(f"{_ARGS}save_*", "taken", _SAVING, only_if="no best is chosen"),
    ResumeRow(f"{_ARGS}logging_* {_ARGS}log_* {_ARGS}num_completions_to_print {_ARGS}disable_tqdm", "taken", _LOGGING),
    ResumeRow(f"{_ARGS}eval_*", "taken", _EVALUATING, only_if="no best is chosen"),
    ResumeRow(f"{_ARGS}per_device_eval_batch_size", "taken", _EVALUATING),
    ResumeRow(f"{_ARGS}per_device_train_batch_size {_ARGS}gradient_accumulation_steps", "never", _COUNTED),
    ResumeRow(f"{_ARGS}generation_batch_size {_ARGS}steps_per_generation", "never", _COUNTED),
    ResumeRow(f"{_ARGS}num_generations {_ARGS}num_iterations", "never", _COUNTED),
    ResumeRow(f"{_ARGS}optim {_ARGS}optim_*", "never", "the optimizer's state in the checkpoint is of another kind"),
    ResumeRow(
        f"{_ARGS}learning_rate {_ARGS}lr_scheduler_type",
        *("by name", "it changes what is trained", "steps alone set the learning rate"),
        else_never=True,
    ),
    ResumeRow("trainer.args model.chat_template", "by name", "it changes what is trained"),
    ResumeRow("trainer.passes trainer.generation", "by name", "rounding depends on the shape of a batch"),
    ResumeRow("trainer.callbacks", "by name", "it may change what is trained"),
    ResumeRow("trainer", "never", "another trainer has another state"),
    ResumeRow("seed", "never", "the checkpoint holds the random state: a new seed would change only part of it"),
    ResumeRow("model.trust_remote_code", "taken", "read again at every start and resume"),
    ResumeRow("model.response_template", "by name", "it changes what counts as a call"),
    ResumeRow("model", "never", _WEIGHTS),
    ResumeRow("teacher", "by name", "another teacher is another goal"),
    ResumeRow("critic kl.coef", "never", _LOADED),
    ResumeRow("guards stop", "taken", "it only ends a run"),
    ResumeRow("track expect warn profile", "taken", "it only watches the run"),
    ResumeRow("run", "taken", "it controls the folder of the run and how it resumes"),
    ResumeRow(
        "launch.processes", "taken", "the number of processes is the same", only_if="as many processes", else_never=True
    ),
    ResumeRow("launch.nodes", "never", "the checkpoint holds the random state and rollouts of each process"),
    ResumeRow("launch.strategy", "never", "the old strategy sharded the checkpoint in its own way"),
    ResumeRow("launch.grace_s launch.must_save_by launch.hang_timeout_s", "taken", "it only sets when a run stops"),
    ResumeRow("launch.slurm", "taken", "it only sets where the run is queued"),
    ResumeRow("", "by name", "it changes what is trained"),
)
"""The rows in matching order; the last one matches every key."""


def row_of(key: str) -> ResumeRow:
    """Return the first row that applies to a dotted key."""
    return next(row for row in RESUME_KEYS if row.fits(key) or not row.keys)


DATA, CODE, CONFIG = "data", "code", "config"  # the values that `--allow` takes, one per kind of file


def kind_of_file(name: str) -> str:
    """Return the kind of the file with this name in the provenance: configuration, data or code."""
    if name == CONFIG:
        return CONFIG
    return DATA if name == "data" or name.startswith(("data.", "data[")) else CODE


WhatIf = Literal["settles", "scores", "ignored"]
_OF_A_REWARD: dict[WhatIf, str] = {
    "settles": "weight offset clip normalize gate on_error",
    "scores": "fn model environment args per when max_length dtype with_eos",
    "ignored": "eager timeout_s isolate batch_size device trial",
}
WHATIF_KEYS: dict[str, WhatIf] = {
    **{f"rewards.*.{name}": effect for effect, names in _OF_A_REWARD.items() for name in names.split()},
    **dict.fromkeys(("aggregate", "truncation", "advantages"), "settles"),
    **{f"trainer.args.{name}": "settles" for name in READ_BY_ALGORITHMS},
    **dict.fromkeys(("run", "track", "guards", "launch"), "ignored"),
}
"""Key -> what a change of it, or of a key below it, does to the scores in the log; `*` is the name of a reward.

`settles`: the logged scores are processed in another way. `scores`: completions get other scores, which the log does
not have. `ignored`: neither. All other keys change what is sampled or learned.
"""


def whatif_effect(key: str) -> WhatIf | None:
    """Return the effect of a changed key on the scores in the log, None if it changes what is sampled or learned."""
    parts = key.split(".")
    if parts[0] == "rewards" and len(parts) > 1:
        parts[1] = "*"
        if len(parts) == 2:
            return "settles"  # a reward is left out
    above = (".".join(parts[:depth]) for depth in range(len(parts), 0, -1))
    return next((WHATIF_KEYS[name] for name in above if name in WHATIF_KEYS), None)
