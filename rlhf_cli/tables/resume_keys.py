"""Lists what may be changed when a run is resumed: one row per key or section, the first match counts.

A resumed run must be equivalent to one that was never interrupted. So a changed value is refused unless it is known not
to affect the result. Most other changes can be allowed explicitly (`--allow KEY`); some cannot, because the
checkpoint's values would silently override them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Effect = Literal["taken", "by name", "never"]


@dataclass(frozen=True)
class ResumeRow:
    """The effect of a change. `key` is a dotted key that includes all keys below it; a final `*` matches any suffix.

    `taken`: the change does not affect training. `by name`: it does, and applies from here on if `--allow` names it.
    `never`: the checkpoint would override it, or not fit. `only_if` is the condition under which a change is taken, a
    name in launch/resuming.py; if it is false, the change is `by name`, or with `else_never`, never taken.
    `reason` is shown to the user.
    """

    key: str
    effect: Effect
    reason: str
    only_if: str | None = None
    else_never: bool = False

    def fits(self, key: str) -> bool:
        """Return whether this row applies to a dotted key."""
        if self.key.endswith("*"):
            return key.startswith(self.key[:-1])
        return key == self.key or key.startswith(f"{self.key}.")


_STEPS = "more steps of the same run"
_SAVING = "it says when a checkpoint is written and how many stay"
_LOGGING = "it says what is logged and when"
_EVALUATING = "an evaluation has random numbers of its own and changes no weight"
_COUNTED = "the rows done so far are counted in batches: of another size, rows would be lost or come twice"
_LOADED = "the checkpoint's own overrules it"
_WEIGHTS = "the checkpoint holds its weights and would not fit another model"

_ROWS = (
    ResumeRow("trainer.args.max_steps", "taken", _STEPS, only_if="steps do not shape the run"),
    ResumeRow("trainer.args.num_train_epochs", "taken", _STEPS, only_if="steps do not shape the run"),
    ResumeRow("trainer.args.save_only_model", "taken", _SAVING),
    ResumeRow("trainer.args.save_*", "taken", _SAVING, only_if="no best is chosen"),
    ResumeRow("trainer.args.logging_*", "taken", _LOGGING),
    ResumeRow("trainer.args.log_*", "taken", _LOGGING),
    ResumeRow("trainer.args.num_completions_to_print", "taken", _LOGGING),
    ResumeRow("trainer.args.disable_tqdm", "taken", _LOGGING),
    ResumeRow("trainer.args.eval_*", "taken", _EVALUATING, only_if="no best is chosen"),
    ResumeRow("trainer.args.per_device_eval_batch_size", "taken", _EVALUATING),
    ResumeRow("trainer.args.per_device_train_batch_size", "never", _COUNTED),
    ResumeRow("trainer.args.gradient_accumulation_steps", "never", _COUNTED),
    ResumeRow("trainer.args.generation_batch_size", "never", _COUNTED),
    ResumeRow("trainer.args.steps_per_generation", "never", _COUNTED),
    ResumeRow("trainer.args.num_generations", "never", _COUNTED),
    ResumeRow("trainer.args.num_iterations", "never", _COUNTED),
    ResumeRow("trainer.args.optim", "never", "the optimizer's state in the checkpoint is of another kind"),
    ResumeRow("trainer.args.optim_*", "never", "the optimizer's state in the checkpoint is of another kind"),
    ResumeRow("trainer.args", "by name", "it changes what is trained"),
    ResumeRow("trainer.passes", "by name", "rounding changes with the way in which rows go through a model"),
    ResumeRow("trainer.generation", "by name", "rounding changes with the shape of the batch that is generated"),
    ResumeRow("trainer", "never", "another trainer keeps another state"),
    ResumeRow("seed", "never", "random numbers go on from the checkpoint: a new seed would reach only some of them"),
    ResumeRow("model.trust_remote_code", "taken", "it is asked for anew whenever a run begins or goes on"),
    ResumeRow("model.chat_template", "by name", "it changes what is trained"),
    ResumeRow("model", "never", _WEIGHTS),
    ResumeRow("critic", "never", _LOADED),
    ResumeRow("kl.coef", "never", _LOADED),
    ResumeRow("track", "taken", "a tracker is a mirror of the run"),
    ResumeRow("guards", "taken", "a guard ends a run and changes no step of it"),
    ResumeRow("stop", "taken", "a rule ends a run and changes no step of it"),
    ResumeRow("expect", "taken", "an expectation is held against a run and changes no step of it"),
    ResumeRow("warn", "taken", "a warning changes no step of a run"),
    ResumeRow("profile", "taken", "it measures a run and changes no step of it"),
    ResumeRow("run", "taken", "it says where the run lies and how it goes on"),
    ResumeRow("launch.processes", "taken", "as many come up", only_if="as many processes", else_never=True),
    ResumeRow("launch.nodes", "never", "every process has random numbers and rollouts of its own in the checkpoint"),
    ResumeRow("launch.strategy", "never", "the checkpoint is cut as the old strategy cuts it"),
    ResumeRow("launch.grace_s", "taken", "it says how long a run may take to stop"),
    ResumeRow("launch.must_save_by", "taken", "it says when a run stops"),
    ResumeRow("launch.hang_timeout_s", "taken", "it says when a run is given up"),
    ResumeRow("launch.slurm", "taken", "it says where the run is queued"),
    ResumeRow("", "by name", "it changes what is trained"),
)

RESUME_KEYS: tuple[ResumeRow, ...] = _ROWS
"""The rows in matching order; the last one matches every key."""


def row_of(key: str) -> ResumeRow:
    """Return the first row that applies to a dotted key."""
    return next(row for row in RESUME_KEYS if row.fits(key) or not row.key)


DATA, CODE, CONFIG = "data", "code", "config"
"""The values that `--allow` takes, one per kind of file."""


def kind_of_file(name: str) -> str:
    """Return the kind of the file with this name in the provenance: configuration, data or code."""
    if name == CONFIG:
        return CONFIG
    return DATA if name == "data" or name.startswith(("data.", "data[")) else CODE
