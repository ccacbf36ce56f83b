"""What is frozen and whose run it is: one's own code runs unasked, a folder from elsewhere asks first."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import sysconfig
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import cast

import pytest

from rlhf_cli.cli import main
from rlhf_cli.config import imported_code
from rlhf_cli.config.imported_code import code_folders
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.errors import RunError
from rlhf_cli.launch.freeze import absolute_paths, create_run, refuse_foreign_code, take_as_ours
from rlhf_cli.plan.prepare import prepare
from rlhf_cli.runs.run_folder import RunFolder, read_json, write_json
from rlhf_cli.runs.run_status import refuse_links
from tests.support.begun_runs import begun
from tests.support.small_runs import SMALL

REWARD = "from pathlib import Path\nPath('it-ran').touch()\n\ndef mine(completions, **columns):\n    return [0.0] * 8\n"


@pytest.fixture
def frozen(place: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RLHF_CACHE", str(place / "cache"))
    (place / "mine.py").write_text(REWARD)

    def make(*words: str) -> RunFolder:
        prepared = prepare(["+exp=quickstart", "track=none", "launch=cpu", *words])
        return create_run(prepared.experiment, prepared.composed, files={})

    return make


@pytest.fixture
def with_code(frozen) -> RunFolder:
    return frozen("+rewards.own.fn=./mine.py:mine")


def asks(run: RunFolder) -> bool:
    with contextlib.suppress(RunError):
        refuse_foreign_code(run, trust=False, command="rlhf resume RUN")
        return False
    return True


def with_a_model(run: RunFolder) -> RunFolder:
    run.model.mkdir()
    (run.model / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    return run


def test_one_s_own_run_is_not_asked_about_until_it_has_other_code(with_code: RunFolder, tmp_path: Path, place) -> None:
    """Wherever it is moved. One that was shared and comes back with another reward file in it has a real mark."""
    assert not asks(with_code)
    moved = RunFolder(Path(shutil.move(with_code.path, tmp_path / "elsewhere")))
    assert not asks(moved)
    config = moved.config.read_text()
    moved.config.write_text(config.replace(f"{place}/mine.py:mine", f"{place}/other.py:mine"))
    assert asks(moved)
    (key,) = (place / "cache" / "maker").iterdir()
    assert key.stat().st_mode & 0o777 == 0o600
    assert key.read_bytes().hex() not in moved.provenance.read_text()


def test_another_user_is_asked_and_told_what_would_run(with_code, place: Path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("RLHF_CACHE", str(place / "another_user_s"))
    with pytest.raises(RunError) as caught:
        refuse_foreign_code(with_code, trust=False, command=f"rlhf resume {with_code.shown}")
    told = str(caught.value)
    assert f"rewards.own.fn: {place}/mine.py:mine" in told
    assert f"rlhf resume {with_code.shown} --trust" in told
    assert read_json(with_code.provenance)["host"]["name"] in told
    refuse_foreign_code(with_code, trust=True, command="rlhf resume RUN")
    assert f"rewards.own.fn: {place}/mine.py:mine" in capsys.readouterr().err
    take_as_ours(with_code)
    assert not asks(with_code)


def test_a_forged_user_and_host_are_not_believed(with_code: RunFolder, place: Path, monkeypatch) -> None:
    """Another user can write any name into a folder, but a mark needs the reader's own key."""
    provenance = read_json(with_code.provenance)
    for mark in ("", "0" * 64, None):
        forged = {**provenance["made_by"], "mark": mark}
        write_json(with_code.provenance, {**provenance, "made_by": forged})
        assert asks(with_code)
    monkeypatch.setenv("RLHF_CACHE", str(place / "theirs"))
    take_as_ours(with_code)
    monkeypatch.setenv("RLHF_CACHE", str(place / "cache"))
    assert asks(with_code)


WORDS = {
    "rewards.own.fn": ["+rewards.own.fn=./mine.py:mine"],
    "launch.slurm.setup": ["launch=slurm", "launch.slurm.setup=[touch it-ran]"],
    "rewards.own.args.url": [
        "+rewards.own.fn=rlhf_cli.rewards.server:RewardServer",
        "+rewards.own.args.url=http://127.0.0.1:9/score",
    ],
}


@pytest.mark.parametrize(
    ("verb", "key"),
    [
        *((verb, "rewards.own.fn") for verb in ("resume", "eval", "generate", "score", "reproduce")),
        *(("resume", key) for key in ("launch.slurm.setup", "rewards.own.args.url")),
        ("eval", "rewards.own.args.url"),
    ],
)
def test_the_verbs_ask_before_anything_runs(verb: str, key: str, frozen, place: Path, monkeypatch, capsys) -> None:
    """Exit code 2, the key by its name, and nothing was imported, submitted or sent."""
    run = with_a_model(frozen(*WORDS[key]))
    assert not asks(run)
    Path("it-ran").unlink(missing_ok=True)
    monkeypatch.setenv("RLHF_CACHE", str(place / "another_user_s"))
    assert main([verb, str(run.path)]) == 2
    told = capsys.readouterr().err
    assert [said for said in (key, f"rlhf {verb} ", "--trust") if said not in told] == []
    assert not Path("it-ran").exists()


class TestLinks:
    """A link in a folder that was unpacked leads the next write anywhere: a file of the user's would be overwritten."""

    @pytest.fixture
    def precious(self, workplace: Path) -> Path:
        (workplace / "precious").write_text("mine")
        return workplace / "precious"

    @pytest.mark.parametrize("name", ["log.txt", "checkpoints/checkpoint-9"])
    def test_one_that_leads_out_is_refused(self, name: str, precious: Path, capsys) -> None:
        place = begun().path / name
        place.unlink(missing_ok=True)
        place.symlink_to(os.path.relpath(precious, place.parent))
        for words in (["resume", "runs/quickstart/one"], ["train", *SMALL, "run.name=one", "run.resume=auto"]):
            assert main(words) == 2
            told = capsys.readouterr().err
            assert name in told
            assert "precious" in told
        assert precious.read_text() == "mine"

    @pytest.mark.parametrize("name", ["log.txt", "checkpoints/checkpoint-3/optimizer.pt"])
    def test_a_pipe_is_refused_and_a_link_within_the_folder_stays(self, name: str, workplace: Path, capsys) -> None:
        """Opening a pipe to write waits for a reader, for ever. wandb makes such a link: wandb/latest-run."""
        run = begun()
        (run.path / "latest").symlink_to("checkpoints")
        refuse_links(run.path)
        (run.path / name).unlink(missing_ok=True)
        os.mkfifo(run.path / name)
        assert main(["resume", str(run.path)]) == 2
        assert name in capsys.readouterr().err

    @pytest.mark.parametrize("verb", ["eval", "generate", "export", "sync", "resume"])
    def test_what_writes_beside_a_model_or_into_a_sweep_asks_too(self, verb: str, precious: Path, capsys) -> None:
        if verb == "resume":
            folder = precious.parent / "runs" / "swept"
            folder.mkdir(parents=True)
            (folder / "sweep.json").write_text("{}")
        else:
            run = with_a_model(begun(state="finished"))
            (run.model / "tokenizer.json").write_text("{}")
            folder = run.path
        (folder / "eval").symlink_to(precious)
        assert main([verb, str(folder)]) == 2
        assert "links" in capsys.readouterr().err


PARTS = {**dict.fromkeys(("aggregate", "advantages", "rollout")), "rewards": {}, "tools": {}, "environments": {}}
WITHOUT_CODE = cast(Experiment, SimpleNamespace(**PARTS, trainer=SimpleNamespace(own_class=None, callbacks=[])))


def test_a_folder_that_pip_installs_into_is_not_the_user_s_code(tmp_path: Path, monkeypatch) -> None:
    """`pip install --target DIR` and PYTHONPATH=DIR: a library there is no reward's helper."""
    own, installed = tmp_path / "own", tmp_path / "installed"
    own.mkdir()
    (installed / "library-1.0.dist-info").mkdir(parents=True)
    monkeypatch.setenv("PYTHONPATH", f"{own}{os.pathsep}{installed}")
    found = code_folders(WITHOUT_CODE)
    assert own in found
    assert installed not in found


def test_a_command_that_pip_installs_is_not_the_user_s_code(tmp_path: Path, monkeypatch) -> None:
    """Typed above its environment, `rlhf` itself is a module of the process; an update of pip rewrites it."""
    command, mine = Path(sysconfig.get_path("scripts")) / "rlhf", tmp_path / "mine.py"
    mine.write_text("")
    for name, file in (("__command__", command), ("__mine__", mine)):
        module = ModuleType(name)
        module.__file__ = str(file)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(imported_code, "code_folders", lambda experiment: {command.parents[2], tmp_path})
    known = frozenset(sys.modules) - {"__command__", "__mine__"}
    assert list(imported_code.imported_since(known, WITHOUT_CODE).values()) == [mine]


def test_paths_are_frozen_with_their_suffix(place: Path) -> None:
    """The hub's cache holds links to files without one. A pattern and a function are looked up from any folder."""
    for name in ("blob", "own.py", "sum"):
        (place / name).write_text("")
    (place / "rows.jsonl").symlink_to("blob")
    for typed in ("rows.jsonl", "*.jsonl"):
        assert absolute_paths({"path": [typed, "a/b"]}) == {"path": [str(place / typed), "a/b"]}
    for key in ("fn", "class", "callbacks", "aggregate"):
        assert absolute_paths({key: "./own.py:f"}) == {key: f"{place}/own.py:f"}
    assert absolute_paths({"aggregate": "sum"}) == {"aggregate": "sum"}


def test_what_a_server_calls_its_model_is_no_path(place: Path) -> None:
    """`hf download --local-dir Qwen/X` makes a folder of that name beside the server that serves it."""
    (place / "Qwen" / "X").mkdir(parents=True)
    for typed, frozen in (("Qwen/X", "Qwen/X"), ("./Qwen/X", f"{place}/Qwen/X"), (None, None)):
        judge = {"args": {"model": typed, "path": "Qwen/X"}, "model": "Qwen/X"}
        assert absolute_paths({"rewards": {"j": judge}}) == {
            "rewards": {"j": {"args": {"model": frozen, "path": f"{place}/Qwen/X"}, "model": f"{place}/Qwen/X"}}
        }
