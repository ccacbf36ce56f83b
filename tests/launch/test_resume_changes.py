"""Changes typed for a resumed run: accepted, allowed with --allow, or refused, all at once before loading anything.

Which keys leave the result alone is argued here from what they do in transformers' and TRL's documentation of their
arguments, not read from the table: saving, logging, evaluating, watching, waiting.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import rlhf_cli
from rlhf_cli.cli import main
from rlhf_cli.display.terminal import Screen
from rlhf_cli.errors import RunError
from rlhf_cli.launch import resuming
from rlhf_cli.launch.resuming import Change, Resumed, _still_means, resumed
from rlhf_cli.plan.prepare import prepare, prepare_from
from rlhf_cli.runs.run_folder import RunFolder, read_json
from rlhf_cli.runs.run_status import update_status
from rlhf_cli.sweeps.sweep_folder import ready_again
from tests.support.begun_runs import begun
from tests.support.one_rank import raising
from tests.support.small_runs import SMALL

pytestmark = [pytest.mark.whole, pytest.mark.usefixtures("workplace")]


def typed(folder: RunFolder, *words: str, allow: tuple[str, ...] = ()) -> Resumed:
    """`rlhf resume RUN words`, up to the moment where it would train."""
    return resumed(folder, prepare_from(folder, list(words)), allow)


def typed_anew(folder: RunFolder, *words: str, allow: tuple[str, ...] = ()) -> Resumed:
    """`rlhf train ... run.resume=auto words`, up to the same moment."""
    return resumed(folder, prepare([*SMALL, "run.name=one", "run.resume=auto", *words]), allow)


def refused(folder: RunFolder, *words: str, allow: tuple[str, ...] = ()) -> RunError:
    with pytest.raises(RunError) as caught:
        typed(folder, *words, allow=allow)
    return caught.value


CONSTANT, MAX_STEPS = "trainer.args.lr_scheduler_type=constant", "trainer.args.max_steps"
RATE, LEARNING, SAVING = "trainer.args.lr_scheduler_type", "trainer.args.learning_rate=0.5", "trainer.args.save_steps=2"
EVALUATED = (
    *("trainer.args.eval_strategy=steps", "trainer.args.eval_steps=1", "trainer.args.save_steps=1"),
    *("data.eval.world=toy_sums", "data.eval.args.num_rows=8", "data.eval.args.seed=1"),
)
BEST = ("trainer.args.load_best_model_at_end=true", "trainer.args.metric_for_best_model=reward")
WATCHING = ["trainer.args.logging_steps=2", "trainer.args.eval_steps=5", "track.notes=mine", "track.mode=offline"]
WAITING = ["guards.no_signal=9", "launch.grace_s=5.0"]
RESULT = [LEARNING, "trainer.args.temperature=0.3", "rewards.brevity.weight=0.7", "truncation.policy=exclude"]
LONGER = f"{MAX_STEPS}=9"
NEVER = ["seed=3", "model.build.hidden_size=32", "trainer.args.per_device_train_batch_size=4", "launch.processes=2"]


@pytest.mark.fault(11)
@pytest.mark.parametrize(
    ("began_with", "taken", "by_name", "never"),
    [
        # TRL's own schedule is linear.
        ((), [SAVING, *WATCHING, *WAITING], [*RESULT, "data.args.num_rows=32", "launch.precision=bf16", LONGER], NEVER),
        # More steps change nothing else only if no schedule depends on their number.
        ((CONSTANT,), [LONGER], [], []),
        ((f"{CONSTANT}_with_warmup", "trainer.args.warmup_steps=2"), [LONGER], [], []),
        ((f"{CONSTANT}_with_warmup", "trainer.args.warmup_steps=0.1"), [], [LONGER], []),
        ((CONSTANT, "rewards.brevity.weight={start: 0.0, end: 1.0, fraction: 0.5}"), [], [LONGER], []),
        ((CONSTANT, "rewards.brevity.weight={start: 0.0, end: 1.0, steps: 5}"), [LONGER], [], []),
        # When to save decides where the best is loaded or sets the rate, which transformers restores.
        ((*EVALUATED, *BEST), [], [SAVING], []),
        ((*EVALUATED, f"{RATE}=greedy"), [], [SAVING], [LEARNING, f"{RATE}=linear"]),
        ((*EVALUATED, f"{RATE}=reduce_lr_on_plateau"), [], [SAVING], [LEARNING]),
        ((*EVALUATED, f"{RATE}=linear"), [], [f"{RATE}=cosine"], [f"{RATE}=greedy"]),
    ],
)
def test_a_change_is_taken_or_has_to_be_named_or_would_be_overruled(
    began_with: tuple[str, ...], taken: list[str], by_name: list[str], never: list[str]
) -> None:
    folder = begun(*began_with)
    for key, value in (word.split("=") for word in taken):
        (line,) = typed(folder, f"{key}={value}").shown_changes()
        assert re.match(rf"{key}: .* -> {value}  \(", line)
    for word in (*by_name, *never):
        key = word.partition("=")[0]
        error = refused(folder, word)
        assert f"{key}: " in str(error.got)
        assert (f"--allow {key}" in str(error.hint)) is (word in by_name)
        if word in by_name:
            assert [change.key for change in typed(folder, word, allow=(key,)).taken] == [key]
        else:
            error = refused(folder, word, allow=(key,))
            assert f"--allow {key}" not in str(error.hint)
            assert str(error.command).startswith(f"rlhf resume {folder.shown}")
            assert "model.path=CHECKPOINT" in str(error.in_words)


def test_the_words_of_a_run_that_resumes_by_itself_are_judged_as_those_of_resume() -> None:
    folder = begun(LEARNING)
    before = folder.config.read_bytes()
    again = typed_anew(folder, LEARNING)
    assert (again.taken, again.shown_changes(), folder.config.read_bytes()) == ((), [], before)
    other = typed_anew(folder, LEARNING, "trainer.args.eval_steps=5")
    assert other.prepared.experiment.trainer.args["eval_steps"] == 5
    with pytest.raises(RunError, match="learning_rate"):
        typed_anew(folder)
    assert "truncation.policy: " in str(refused(folder, "truncation=exclude").got)  # a choice of a group, too


def test_check_says_whether_a_run_of_another_machine_may_be_continued(capsys: pytest.CaptureFixture[str]) -> None:
    update_status(begun(), state="running", pid=1, host="elsewhere")
    words = ["check", *SMALL, "run.name=one", "run.resume=auto"]
    assert (main(words), main([*words, "--take-over"])) == (2, 0)
    assert "--take-over" in capsys.readouterr().err
    assert main(words[:-1]) == 2
    assert "is being trained right now" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("nonsense", "rlhf resume --help"),
        ("dta", "--allow data"),
        ("trainer.args.learning_rat", "--allow trainer.args.learning_rate"),
        ("rewards.breviti.weight", "--allow rewards.brevity.weight"),
    ],
)
def test_a_name_that_allows_nothing_is_refused(name: str, hint: str) -> None:
    folder = begun()
    assert refused(folder, allow=(name,)).hint == hint
    assert typed(folder, allow=("trainer", "trainer.args.warmup_steps", "code")).plan is not None  # keys of the run


def test_a_reward_that_is_removed_is_named_by_its_function_and_may_be_allowed() -> None:
    folder = begun()
    run = typed(folder, "~rewards.brevity", allow=("rewards.brevity",))
    assert "brevity" not in run.prepared.experiment.rewards
    (line,) = run.shown_changes()
    assert re.match(r"rewards\.brevity: \S+:\w+ -> not set  \(allowed", line)


def test_a_deadline_that_has_passed_is_forgotten_unless_another_is_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    first, later = "2090-01-01T00:00", "2091-01-01T00:00"
    folder = begun(f"launch.must_save_by={first}")
    assert typed(folder).taken == ()
    monkeypatch.setattr(resuming, "has_passed", first.__eq__)
    assert typed(folder, f"launch.must_save_by={later}").prepared.experiment.launch.must_save_by == later
    run = typed(folder)
    assert [change.key for change in run.taken] == ["launch.must_save_by"]
    ready_again(run, take_over=False)
    assert yaml.safe_load(folder.config.read_text())["launch"]["must_save_by"] is None
    assert typed(folder).taken == ()


def test_fewer_steps_epochs_or_rows_than_were_made_are_none_to_go_on_to() -> None:
    folder = begun(CONSTANT, f"{MAX_STEPS}=9", step=5)
    assert typed(folder, f"{MAX_STEPS}=7").taken
    assert "step 4" in refused(folder, f"{MAX_STEPS}=4", allow=(MAX_STEPS,)).what
    epochs = ("trainer.args.num_train_epochs=2", "data.args.num_rows=16")
    folder = begun(CONSTANT, f"{MAX_STEPS}=-1", *epochs, step=9, name="epochs")
    assert typed(folder, "trainer.args.save_steps=7").plan is not None
    for word in ("trainer.args.num_train_epochs=1", "data.args.num_rows=8"):
        assert "step 8" in refused(folder, word, allow=("data", "trainer.args.num_train_epochs")).what


def test_a_resume_that_is_refused_because_of_its_gpu_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = begun()
    before = folder.config.read_bytes(), folder.provenance.read_bytes()
    run = typed(folder, RESULT[0], allow=("trainer.args.learning_rate",))
    monkeypatch.setattr(resuming, "gpus_held", lambda *_: raising(RunError("another run trains on the GPU"))())
    with pytest.raises(RunError):
        resuming.resume_once(Screen(), run, take_over=False)
    assert (folder.config.read_bytes(), folder.provenance.read_bytes()) == before


class TestFinished:
    def test_more_steps_make_it_longer_and_more_logging_does_not(self) -> None:
        folder = begun(CONSTANT, state="finished")
        assert typed(folder, "trainer.args.logging_steps=5").plan is None
        assert typed(folder, f"{MAX_STEPS}=6").plan is not None
        assert "--allow" not in str(refused(folder, LEARNING).hint)  # it would be used on no step
        assert "--allow" in str(refused(folder, f"{MAX_STEPS}=6", LEARNING).hint)

    @pytest.mark.parametrize("is_of_sweep", [False, True])
    def test_one_that_is_killed_before_it_goes_on_is_not_done(self, monkeypatch, *, is_of_sweep: bool) -> None:
        folder = begun(CONSTANT, state="finished")
        monkeypatch.setattr(resuming, "train_frozen", lambda *_, **__: raising(KeyboardInterrupt())())
        longer = typed(folder, f"{MAX_STEPS}=6")
        if is_of_sweep:
            ready_again(longer, take_over=False)
        else:
            with pytest.raises(KeyboardInterrupt):
                resuming.resume_once(Screen(), longer, take_over=False)
        again: Any = typed(folder)
        assert again.plan.batches.steps == 6

    def test_without_a_checkpoint_of_its_end_there_is_nothing_to_go_on_from(self) -> None:
        folder = begun(CONSTANT, state="finished", step=0)
        update_status(folder, step=3)
        assert "checkpoint-3" in str(refused(folder, f"{MAX_STEPS}=6").expected)


class TestFiles:
    def code(self, workplace: Path, body: str) -> str:
        (workplace / "mine.py").write_text(f"def one(completions, **kwargs):\n    return {body}\n")
        return "rewards.mine.fn=./mine.py:one"

    @pytest.mark.fault(13)
    def test_reward_code_that_changed_is_named_with_both_hashes(self, workplace: Path) -> None:
        folder = begun(self.code(workplace, "[1.0] * len(completions)"))
        before = read_json(folder.provenance)["sha256"]["rewards.mine"]
        typed(folder)  # negative control: it has not changed yet
        self.code(workplace, "[2.0] * len(completions)")
        for allow in ((), ("data",)):
            error = refused(folder, allow=allow)
            assert before[:12] in str(error.got)
            assert "mine.py" in str(error.got)
            assert "--allow code" in str(error.hint)
        assert typed(folder, allow=("code",)).files[0].name == "rewards.mine"

    @pytest.mark.parametrize(
        ("names", "imports"),
        [
            ("rewards.mine.fn", "from sign_of import K"),
            ("rewards.mine.fn", "def late():\n    import importlib; importlib.import_module('sign_of.inner')"),
            ("rewards.mine.fn", "import importlib; importlib.import_module('sign' + '_of')"),
            ("trainer.class", "def late():\n    from sign_of import inner"),
        ],
    )
    def test_a_helper_that_the_code_imports(self, workplace: Path, names: str, imports: str) -> None:
        """The helper turns the sign of a reward; the named file stays what it is."""
        helper = workplace / "sign_of" / ("inner.py" if "inner" in imports else "__init__.py")
        helper.parent.mkdir()
        (helper.parent / "__init__.py").touch()
        helper.write_text("K = 1.0\n")
        (workplace / "named.py").write_text(
            f"{imports}\nclass GRPOTrainer: pass\nclass one(GRPOTrainer):\n    def __init__(self, **given): ...\n"
            "    def __call__(self, completions): ...\n"
        )
        folder = begun(f"{names}=./named.py:one")
        typed(folder)
        for name in [name for name in sys.modules if name.startswith("sign_of")]:
            del sys.modules[name]
        helper.write_text("K = -1.0\n")
        error = refused(folder)
        assert str(helper) in str(error.got)
        assert "named.py" not in str(error.got)
        assert "--allow code" in str(error.hint)
        assert [file.path for file in typed(folder, allow=("code",)).files] == [helper]

    @pytest.mark.fault(13)
    def test_any_of_several_data_files(self, workplace: Path) -> None:
        for name in ("a.jsonl", "b.jsonl"):
            (workplace / name).write_text('{"prompt": "1+1=", "a": 1, "b": 1}\n' * 9)
        folder = begun("data=file", "data.path=[a.jsonl,b.jsonl]", "~data.args")
        typed(folder)
        (workplace / "a.jsonl").write_text('{"prompt": "1+2=", "a": 1, "b": 2}\n' * 9)
        error = refused(folder)
        assert "a.jsonl" in str(error.got)
        assert "b.jsonl" not in str(error.got)
        assert "--allow data" in str(error.hint)
        assert typed(folder, allow=("data",)).files

    @pytest.mark.parametrize(("beta", "is_read"), [(0.1, True), (0.0, False)])
    def test_a_local_model_that_is_read_again(self, workplace: Path, beta: float, *, is_read: bool) -> None:
        """Here the reference; a starting model without one is in the checkpoint."""
        shutil.copytree(Path(rlhf_cli.__file__).parent / "models" / "embedded" / "tiny", workplace / "start")
        folder = begun("model.build=null", "model.path=start", f"trainer.args.beta={beta}")
        (workplace / "start" / "README.md").write_text("weights alone count")
        assert typed(folder).plan is not None
        weights = workplace / "start" / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-1] + b"x")
        if is_read:
            assert "model.path" in str(refused(folder).got)
            assert typed(folder, allow=("code",)).files
        else:
            assert typed(folder).plan is not None

    @pytest.mark.fault(12)
    def test_a_configuration_that_somebody_edited(self) -> None:
        """As faults.md 12 saw it: another batch in config.yaml was trained with, in silence."""
        folder = begun()
        content = yaml.safe_load(folder.config.read_text())
        content["trainer"]["args"]["per_device_train_batch_size"] = 4
        folder.config.write_text(yaml.safe_dump(content))
        error = refused(folder)
        assert "config.yaml" in str(error.got)
        assert "--allow config" in str(error.hint)

    def test_without_provenance_it_is_said_that_nobody_knows(self) -> None:
        folder = begun()
        folder.provenance.unlink()
        (line,) = typed(folder).shown_changes()
        assert "provenance.json" in line


def test_another_run_of_that_name_has_finished_meanwhile() -> None:
    """`run:NAME` was the newest then, and is still what was typed: the frozen one stays."""
    old = "/data/runs/hh_reward/20260101-101500/model"
    assert _still_means("run:hh_reward", Change(("rewards", "a", "model"), old, "/elsewhere"))
    assert _still_means("run:hh_reward/20260101-101500", Change(("rewards", "a", "model"), old, "/elsewhere"))
    assert not _still_means("run:other", Change(("rewards", "a", "model"), old, "/elsewhere"))
    assert _still_means("auto", Change(("rewards", "a", "offset"), 0.25, 0.5))
    assert not _still_means("auto", Change(("launch", "processes"), 2, "auto"))
