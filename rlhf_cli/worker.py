"""One rank: read the frozen config, assemble, train, save, say how it ended.

With one process this runs inside the command the user typed; with several, accelerate's launcher runs this module in
each. Either way the run folder is all it is told.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rlhf_cli.config.schema import Experiment
from rlhf_cli.errors import EXIT_CRASH, EXIT_OK, ConfigError, RlhfError, RunError
from rlhf_cli.runs.checkpoints import MANIFEST, newest_whole
from rlhf_cli.runs.folder import RunFolder, open_run, write_json
from rlhf_cli.runs.metrics import rewind
from rlhf_cli.runs.provenance import add_to_provenance
from rlhf_cli.runs.status import FAILED, FINISHED, PREEMPTED, claim, update_status
from rlhf_cli.runs.tracking import plan_tracking, tracked

_QUIET = {
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
    "WANDB_SILENT": "true",
}


def run_rank(folder: RunFolder, *, resume: bool) -> None:
    """Train the run in `folder` to its end on this rank. `resume`: go on from the newest checkpoint, if there is one.

    Whatever happens is in status.json before this returns or raises.
    """
    rank = int(os.environ.get("RANK", "0"))
    with _environment(), _logging(folder, rank) as warnings_seen:
        try:
            if rank == 0:
                claim(folder)
            _train(folder, resume=resume)
        except KeyboardInterrupt:
            if rank == 0:
                update_status(folder, state=PREEMPTED, reason="interrupted at the keyboard")
            raise
        except BaseException as error:
            _record_failure(folder, rank, error)
            raise
        finally:
            if rank == 0:
                update_status(folder, warnings=warnings_seen())


def _train(folder: RunFolder, *, resume: bool) -> None:
    experiment = Experiment.model_validate(folder.read_config())
    _refuse_other_world_size(folder, experiment)

    from transformers import PrinterCallback
    from transformers.utils import logging as transformers_logging

    from rlhf_cli.assemble import assemble
    from rlhf_cli.trainers.callbacks import ProgressBar, Recorder, Spinner

    transformers_logging.disable_default_handler()
    transformers_logging.enable_propagation()
    transformers_logging.disable_progress_bar()

    is_main = int(os.environ.get("RANK", "0")) == 0
    mode = plan_tracking(experiment.track.mode).mode if is_main else "none"
    with Spinner(shown=is_main) as spinner:
        trainer = assemble(experiment, folder, track_mode=mode, on_progress=spinner.update)
    trainer.remove_callback(PrinterCallback)
    checkpoint = _checkpoint(folder, is_main=is_main) if resume else None
    if is_main:
        add_to_provenance(folder, **_seen(trainer))
        for lengths in getattr(trainer, "lengths", {}).values():
            if lengths.dropped or lengths.cut:
                print(f"warning: {lengths.describe()}")
        rewind(folder.metrics, int(checkpoint.name.rpartition("-")[2]) if checkpoint else 0)
        trainer.add_callback(Recorder(folder))
        trainer.add_callback(ProgressBar())
    with tracked(folder, experiment.model_dump(mode="json"), mode) if is_main else contextlib.nullcontext():
        try:
            trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        finally:
            for callback in trainer.callback_handler.callbacks:
                if isinstance(callback, ProgressBar):
                    callback.stop()
            if trainer.reward_stack is not None:
                trainer.reward_stack.close()
        _finish(folder, trainer, is_main=is_main)


def _checkpoint(folder: RunFolder, *, is_main: bool) -> Path | None:
    """The newest checkpoint that verifies, the same for every rank; None before the first one was written.

    What is newer and does not verify is named. Raises RunError when there are checkpoints and none verifies: to begin
    again would overwrite what the run has written.
    """
    from accelerate.utils import broadcast_object_list

    found: list[Any] = [None, []]
    if is_main:  # the others would read every byte once more
        found = list(newest_whole(folder.checkpoints))
    broadcast_object_list(found)
    checkpoint: Path | None = found[0]
    skipped: list[str] = found[1]
    if checkpoint is None and skipped:
        raise RunError(
            "no checkpoint of this run is whole",
            where=str(folder.checkpoints),
            got="\n".join(skipped),
            expected=f"one whose files are as its {MANIFEST} says",
            hint="move these away, and the run starts at step 0",
        )
    if is_main:
        for line in skipped:
            logging.getLogger("rlhf").warning("skipped %s", line)
            print(f"warning: skipped {line}")
        print(f"going on from {checkpoint.name}" if checkpoint else "there is no checkpoint yet: starting at step 0")
    return checkpoint


def _finish(folder: RunFolder, trainer: Any, *, is_main: bool) -> None:
    """Save the model and say `finished`, but only when training reached its last step."""
    state = trainer.state
    if state.global_step < state.max_steps:
        raise RlhfError(f"training ended at step {state.global_step} of {state.max_steps}")
    trainer.save_model(str(folder.model))
    if is_main:
        if (critic := getattr(trainer, "critic", None)) is not None:
            critic.save(folder.critic)
        card = folder.path / "README.md"
        if card.is_file():
            card.replace(folder.model / "README.md")  # TRL writes its model card where it logs, not where it saves
        update_status(folder, state=FINISHED, step=state.global_step, max_steps=state.max_steps)


def _refuse_other_world_size(folder: RunFolder, experiment: Experiment) -> None:
    """accelerate and torchrun fall back to one process without a word; here that is an error."""
    asked = experiment.launch.processes
    seen = int(os.environ.get("WORLD_SIZE", "1"))
    if asked != "auto" and asked != seen:
        raise ConfigError(
            f"{asked} processes were asked for and {seen} came up",
            where="launch.processes",
            got=f"WORLD_SIZE={seen}",
            expected=str(asked),
            hint="rlhf train ... launch.processes=1, or rlhf resume RUN",
        )


def _seen(trainer: Any) -> dict[str, Any]:
    accelerator = trainer.accelerator
    left_out = getattr(trainer, "left_out", {})
    lengths = getattr(trainer, "lengths", {})
    return {
        "world_size": accelerator.num_processes,
        "distributed_type": str(accelerator.distributed_type.value),
        "device": str(accelerator.device),
        "mixed_precision": accelerator.mixed_precision,
        "num_parameters": sum(parameter.numel() for parameter in trainer.model.parameters()),
        "num_train_rows": len(trainer.train_dataset),
        **({"left_out": left_out} if left_out else {}),
        **({"lengths": {name: one.facts() for name, one in lengths.items()}} if lengths else {}),
    }


def _record_failure(folder: RunFolder, rank: int, error: BaseException) -> None:
    """A file a rank, so that the first of several failures can be told from those it caused."""
    text = "".join(traceback.format_exception(error))
    logging.getLogger("rlhf").error("rank %d failed\n%s", rank, text)
    content = {
        "rank": rank,
        "time": time.time(),
        "message": str(error) if isinstance(error, RlhfError) else f"{type(error).__name__}: {error}",
        "traceback": text,
        "exit_code": getattr(error, "exit_code", EXIT_CRASH),
    }
    write_json(folder.path / f"failure-rank{rank}.json", content)
    if rank == 0:
        update_status(folder, state=FAILED, reason=content["message"], failing_rank=rank)


@contextlib.contextmanager
def _environment() -> Iterator[None]:
    """Quiet libraries while we run, and the environment as it was afterwards: a sweep runs many in one process."""
    before = dict(os.environ)
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextlib.contextmanager
def _logging(folder: RunFolder, rank: int) -> Iterator[Any]:
    """Everything libraries log or warn goes to log.txt, a repeated warning once; yields a count of the warnings."""
    handler = logging.FileHandler(folder.log, encoding="utf-8")
    handler.setFormatter(logging.Formatter(f"%(asctime)s rank{rank} %(levelname)s %(name)s: %(message)s"))
    warned: set[str] = set()

    def is_new(record: logging.LogRecord) -> bool:
        if record.levelno != logging.WARNING:
            return True
        message = record.getMessage()
        is_first = message not in warned
        warned.add(message)
        return is_first

    handler.addFilter(is_new)
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    logging.captureWarnings(True)
    try:
        yield lambda: len(warned)
    finally:
        logging.captureWarnings(False)
        root.setLevel(level)
        root.removeHandler(handler)
        handler.close()


def main(argv: list[str] | None = None) -> int:
    """Entry point of a rank that accelerate's launcher started."""
    parser = argparse.ArgumentParser(prog="python -m rlhf_cli.worker")
    parser.add_argument("run", type=Path)
    parser.add_argument("--resume", action="store_true")
    options = parser.parse_args(argv)
    folder = open_run(options.run)
    try:
        run_rank(folder, resume=options.resume)
    except KeyboardInterrupt:
        return 75
    except Exception:  # recorded in failure-rank<r>.json, which the parent shows
        return EXIT_CRASH
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
