"""Only finished runs and whole checkpoints can be exported."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from pathlib import Path

import pytest

from rlhf_cli.errors import ModelError, RlhfError, RunError
from rlhf_cli.evaluation.targets import find_target
from rlhf_cli.process import this_process
from rlhf_cli.project.exported_folder import SourceModel, find_source
from rlhf_cli.runs.checkpoint_folders import write_manifest
from rlhf_cli.runs.run_folder import RunFolder
from tests.project.finished_runs import finished_run


def a_run(place: Path, *, weights: str = "model.safetensors", state: str = "finished", **changes: object) -> RunFolder:
    """Return a run with checkpoints of steps 2 and 3, whose weights are not read."""
    run = finished_run(place, None, **changes)
    for folder in (run.model, run.checkpoints / "checkpoint-2", run.checkpoints / "checkpoint-3"):
        folder.mkdir(parents=True)
        (folder / weights).write_bytes(b"weights")
        (folder / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
        write_manifest(folder)
    run.status.write_text(json.dumps({"state": state, "step": 3}))
    return run


def found(run: RunFolder, *, step: int | None = None, trust: bool = False) -> SourceModel:
    return find_source(run, step=step, trust=trust)


def test_the_end_of_a_finished_run_and_any_checkpoint(tmp_path: Path) -> None:
    """An adapter names its kind and base."""
    run = a_run(tmp_path / "run")
    assert (found(run).folder, found(run).step, found(run).kind) == (run.model, 3, "policy")
    source = found(run, step=2)
    assert (source.folder.name, source.step, source.is_checkpoint) == ("checkpoint-2", 2, True)
    for task, kind in (("CAUSAL_LM", "policy"), ("SEQ_CLS", "reward model")):
        adapter = {"task_type": task, "base_model_name_or_path": "Qwen/Qwen3-0.6B"}
        (run.model / "adapter_config.json").write_text(json.dumps(adapter))
        assert (found(run).kind, found(run).base) == (kind, "Qwen/Qwen3-0.6B")


@pytest.mark.parametrize("state", ["preempted", "created"])
def test_an_unfinished_run_needs_a_checkpoint(state: str, tmp_path: Path) -> None:
    run = a_run(tmp_path / "run", state=state)
    with pytest.raises(RunError, match="has not finished") as refused:
        found(run)
    assert refused.value.got == f"{state} at step 3"
    assert "--checkpoint 3" in str(refused.value.hint)
    assert found(run, step=3).step == 3


def test_a_run_that_is_in_training_is_waited_for(tmp_path: Path) -> None:
    """`rlhf resume` would be refused for it, so the advice of `export` and `eval` is the command that shows the end."""
    run = a_run(tmp_path / "run")
    shutil.rmtree(run.model)
    for state, process, verb in (("running", asdict(this_process()), "status"), ("preempted", {}, "resume")):
        run.status.write_text(json.dumps({"state": state, "step": 3, **process}))
        for refuse in (find_source, lambda run, **_: find_target(run.path)):
            with pytest.raises(RunError) as refused:
                refuse(run, step=None, trust=False)
            assert str(refused.value.hint).startswith(f"rlhf {verb} {run.typed}")


def refusal(run: RunFolder, **asked: object) -> RlhfError:
    with pytest.raises(RlhfError) as refused:
        found(run, **asked)  # type: ignore[arg-type]
    assert refused.value.exit_code == 2
    return refused.value


def test_missing_and_damaged_checkpoints(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    assert refusal(run, step=5).got == "steps 2, 3"
    (run.checkpoints / "checkpoint-2" / "model.safetensors").write_bytes(b"wEights")
    damaged = refusal(run, step=2)
    assert "has changed" in str(damaged.got)
    assert damaged.hint == "--checkpoint 3"
    shutil.rmtree(run.checkpoints)
    assert (refusal(run, step=2).got, refusal(run, step=2).hint) == ("no checkpoints", f"rlhf export {run.typed}")


def test_pieces_of_weights_are_refused(tmp_path: Path) -> None:
    refused = refusal(a_run(tmp_path / "run", weights="__0_0.distcp"))
    assert isinstance(refused, ModelError)
    assert "__0_0.distcp" in str(refused.got)


def test_code_of_the_model_needs_trust(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run", model={"path": "someone/model", "trust_remote_code": True})
    assert "--trust" in str(refusal(run).hint)
    assert found(run, trust=True).trust_remote_code
