"""Save checkpoints that are whole or not there.

All code that saves calls `_get_output_dir`: TRL, the Trainer below it, our own mixins. While a checkpoint is being
saved, it returns a staging folder, which `runs/checkpoints.py` turns into a checkpoint when all have written.
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
from rlhf_cli.runs.text_endings import write_text_endings
from rlhf_cli.trainers.additions import Additions
from rlhf_cli.trainers.finite_steps import num_elements
from rlhf_cli.trainers.trl_protocol import TrlTrainer

_STATE_FILE = "trainer_state.json"


class WholeCheckpoints(TrlTrainer):
    """Outermost of the mixins that save: publish the checkpoint that super() writes in a single step."""

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
        # No rank writes before the left-overs are gone, and no rank hashes before all have written.
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
        # Other users download from the hub: its scan for harmful pickles needs complete archives.
        with nullcontext() if self.args.push_to_hub else _without_crc32():
            super()._save_optimizer_and_scheduler(output_dir)

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Upload once the folder has its final name, because uploads run in the background."""
        if self._staging is not None:
            self._to_push = True
        else:
            super()._push_from_checkpoint(checkpoint_folder)

    def _name_best(self, folder: Path, staged: Path) -> None:
        """Record the best checkpoint's final path in the state; the Trainer recorded the staging path."""
        state = self.state
        if not state.best_global_step:
            return
        best = checkpoint_folder(folder, state.best_global_step)
        if best.name == staged.name or best.is_dir():
            state.best_model_checkpoint = str(best)
        if self.args.should_save:
            state.save_to_json(str(staged / _STATE_FILE))

    def _prune(self, folder: Path) -> None:
        """Rotate checkpoints as in the Trainer, but in their final folder and in the order of their steps."""
        limit = self.args.save_total_limit
        if limit is None or limit <= 0:
            return
        for step, path in checkpoints_in(folder):
            # A later step exists if this run went back to an older checkpoint because the later one did not verify.
            # Rotation would treat it as the newest, and delete the checkpoint that was just written.
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
    """Make torch.save skip the CRC-32 of its output inside this context, a third of its time.

    torch.load does not check it; the hash in the checkpoint's manifest detects damaged files.
    """
    before = get_crc32_options()
    set_crc32_options(False)
    try:
        yield
    finally:
        set_crc32_options(before)


def _bytes_needed(trainer: TrlTrainer) -> int:
    """Return the size of a first checkpoint: the saved weights, plus twice the trained ones (Adam's state)."""
    sizes = [(num_elements(one) * one.element_size(), one.requires_grad) for one in _saved(trainer)]
    trained: int = sum(size for size, is_trained in sizes if is_trained)
    saved: int = sum(size for size, _ in sizes)
    return saved if trainer.args.save_only_model else saved + 2 * trained


def _saved(trainer: TrlTrainer) -> list[Parameter]:
    """Return the parameters in a checkpoint: for an adapter, only the trained ones."""
    parameters = list(trainer.model.parameters())
    has_adapter = hasattr(trainer.model, "peft_config")
    return [parameter for parameter in parameters if parameter.requires_grad] if has_adapter else parameters


class WithTextEndings(TrlTrainer):
    """For a TRL trainer of reward models: write `additions.ends_with_eos` beside all weights it saves."""

    additions: Additions

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        super()._save(output_dir, state_dict)
        # transformers calls this on every rank, but only the rank that writes creates the folder
        if not self.args.should_save:
            return
        with_eos = self.additions.ends_with_eos
        assert with_eos is not None
        write_text_endings(Path(output_dir or self.args.output_dir), with_eos=with_eos)
