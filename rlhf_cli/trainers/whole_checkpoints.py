"""Save checkpoints that are whole or not there, whatever a trainer and its mixins write into them.

Everything that saves asks `_get_output_dir` where to: TRL, the Trainer below it, our own mixins. So while a checkpoint
is being saved that leads to a staging place, and `runs/checkpoints.py` makes of it a checkpoint when all have written.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from torch.nn import Parameter
from torch.serialization import get_crc32_options, set_crc32_options
from transformers.trainer_utils import rotate_checkpoints

from rlhf_cli.runs.checkpoint_folders import (
    checkpoint_folder,
    checkpoints_in,
    clear_staging,
    commit,
    newest_whole,
    problem_with,
    staging_place,
)
from rlhf_cli.runs.disk_space import bytes_below, is_full, no_room
from rlhf_cli.trainers.sharded_parameters import num_elements
from rlhf_cli.trainers.trl_protocol import TrlTrainer

_STATE_FILE = "trainer_state.json"


class WholeCheckpoints(TrlTrainer):
    """Mixed in as the outermost that saves, it makes what its super() writes as a checkpoint appear in one step."""

    _staging: Path | None = None
    _to_push: bool = False

    def _get_output_dir(self, trial: Any) -> str:
        if self._staging is not None:
            return str(self._staging)
        return super()._get_output_dir(trial=trial)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        folder = Path(self._get_output_dir(trial))
        place = staging_place(folder, self.state.global_step)
        staged = checkpoint_folder(place, self.state.global_step)
        writes = self.args.should_save
        if writes:
            clear_staging(folder)
        # Nobody writes before the left-overs are gone, nobody hashes before all have written.
        self.accelerator.wait_for_everyone()
        self._staging, self._to_push = place, False
        try:
            super()._save_checkpoint(model, trial)
            self.accelerator.wait_for_everyone()
            self._name_best(folder, staged)
            if writes:
                commit(staged)
        except BaseException as error:
            written = bytes_below(place)
            if writes:
                shutil.rmtree(place, ignore_errors=True)
            if not is_full(error):
                raise
            kept = newest_whole(folder)[0]
            needed = bytes_below(kept) if kept is not None else _bytes_needed(self)
            raise no_room(folder / staged.name, needed=max(needed, written), kept=kept, error=error) from error
        finally:
            self._staging = None
        if writes:
            self._prune(folder)
        if self._to_push:
            self._push_from_checkpoint(str(folder / staged.name))
        self.accelerator.wait_for_everyone()

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        # On the hub others read it: what looks there for harmful pickles wants whole archives.
        with nullcontext() if self.args.push_to_hub else _without_crc32():
            super()._save_optimizer_and_scheduler(output_dir)

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Upload when the folder has the name it keeps, for an upload goes on in the background."""
        if self._staging is not None:
            self._to_push = True
        else:
            super()._push_from_checkpoint(checkpoint_folder)

    def _name_best(self, folder: Path, staged: Path) -> None:
        """Let the state name the best checkpoint where it will lie; the Trainer looked for it where it was staged."""
        state = self.state
        if not state.best_global_step:
            return
        best = checkpoint_folder(folder, state.best_global_step)
        if best.name == staged.name or best.is_dir():
            state.best_model_checkpoint = str(best)
        if self.args.should_save:
            state.save_to_json(str(staged / _STATE_FILE))

    def _prune(self, folder: Path) -> None:
        """Rotate checkpoints as the Trainer does, where they lie and in the order of their steps."""
        limit = self.args.save_total_limit
        if limit is None or limit <= 0:
            return
        for step, path in checkpoints_in(folder):
            # A later step lies there when this run went back to an older checkpoint because it did not verify. It would
            # be counted as the newest, and the one just written deleted in its favour.
            if step > self.state.global_step and problem_with(path) is not None:
                shutil.rmtree(path)
        rotate_checkpoints(
            output_dir=str(folder),
            save_total_limit=limit,
            best_model_checkpoint=self.state.best_model_checkpoint,
            use_mtime=False,
        )


@contextmanager
def _without_crc32() -> Iterator[None]:
    """Let torch.save leave out the CRC-32 of what it writes inside the `with` block, a third of its time.

    torch.load looks at none; what became of a file is found by the hash in its checkpoint's manifest.
    """
    before = get_crc32_options()
    set_crc32_options(False)
    try:
        yield
    finally:
        set_crc32_options(before)


def _bytes_needed(trainer: TrlTrainer) -> int:
    """Return what a first checkpoint takes: the weights that are saved, and twice those that are trained (Adam's)."""
    sizes = [(num_elements(one) * one.element_size(), one.requires_grad) for one in _saved(trainer)]
    trained: int = sum(size for size, is_trained in sizes if is_trained)
    saved: int = sum(size for size, _ in sizes)
    return saved if trainer.args.save_only_model else saved + 2 * trained


def _saved(trainer: TrlTrainer) -> list[Parameter]:
    """Return the parameters that a checkpoint holds: of an adapter those that are trained."""
    parameters = list(trainer.model.parameters())
    has_adapter = hasattr(trainer.model, "peft_config")
    return [parameter for parameter in parameters if parameter.requires_grad] if has_adapter else parameters
