"""The layout of a run folder, and which runs a path means."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rlhf_cli.errors import RunError
from rlhf_cli.runs import run_folder
from rlhf_cli.runs.run_folder import RunFolder, open_run, runs_in, write_json, write_text

MakeRun = Callable[..., RunFolder]


def test_the_last_checkpoint_has_the_highest_step_of_the_whole_ones(make_run: MakeRun) -> None:
    """And is not the last in the alphabet."""
    folder = make_run()
    for name in ("checkpoint-9", "checkpoint-100", "checkpoint-20", "checkpoint-100-old", "best"):
        (folder.checkpoints / name).mkdir(parents=True)
    assert folder.last_checkpoint() is None
    for step, last in ((20, 20), (9, 20), (100, 100)):
        (folder.checkpoints / f"checkpoint-{step}" / "trainer_state.json").write_text("{}")
        assert folder.last_checkpoint() == folder.checkpoints / f"checkpoint-{last}"


def test_a_configuration_is_edited_if_it_has_another_hash_than_the_one_that_was_trained_with(make_run: MakeRun) -> None:
    folder = make_run()
    written = folder.config.read_bytes()
    assert not folder.is_config_edited()
    write_json(folder.provenance, {"sha256": {"config": hashlib.sha256(written).hexdigest()}})
    for content, is_edited in ((written, False), (written + b"#", True), (b"\xff", False)):
        folder.config.write_bytes(content)
        assert folder.is_config_edited() == is_edited
    folder.config.unlink()
    assert not folder.is_config_edited()


def test_a_folder_that_holds_runs_or_sweeps_is_told(
    tmp_path: Path, make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunError) as caught:
        open_run(Path("quick"))
    assert caught.value.hint == "rlhf train +exp=quickstart"
    for name in ("quickstart/s1/a", "quickstart/s1/b", "quickstart/s2/a"):
        folder = make_run(f"runs/{name}")
        (folder.path.parent / "sweep.json").write_text("{}")
        os.utime(folder.config, (1, 1 if "s1" in name else 2))
        assert (folder.sweep_group, folder.label) == (name[:-2], name)
    for name in ("runs/a/s2", "notes", "my notes", "runs/quickstart/s2/a/model"):
        Path(name).mkdir(parents=True)
    Path(run := "runs/quickstart/s2/a", "metrics.jsonl").write_text("")
    other = "rlhf generate {} +exp=NAME, or rlhf train +exp=NAME model.path=..."
    for typed, got, hint in (
        ("runs", "a folder with 3 runs", "runs/quickstart/s2/a"),
        ("runs/quickstart/s1", "a sweep: several runs of one command", "runs/quickstart/s1/a"),
        *((typed, "no such folder", "runs/quickstart/s2") for typed in ("s2", "runs/quickstart/s")),
        *((typed, "no such folder", "runs/quickstart") for typed in ("quick", "quikcstart", "runs/quikcstart")),
        *(("quickstart/s1", "no such folder", "runs/quickstart/s1"), ("runs/unlike", "no such folder", "rlhf status")),
        (f"{tmp_path}/runs/quick", "no such folder", f"{tmp_path}/runs/quickstart"),
        (f"{run}/modle", "no such folder", f"{run}/model"),
        *((f"{run}/{name}", "a file", run) for name in ("config.yaml", "metrics.jsonl")),
        (f"{run}/model", "no config.yaml in it", run),
        ("runs/quickstart/s2/sweep.json", "a file", "runs/quickstart/s2"),
        *((name, "no config.yaml in it", f"ls {shlex.quote(name)}") for name in ("notes", "my notes")),
        *((name, "no such folder", other.format(name)) for name in ("small.GGUF", "package:small")),
    ):
        with pytest.raises(RunError) as caught:
            open_run(Path(typed))
        assert (caught.value.got, caught.value.hint) == (got, hint)
        if typed not in ("runs", "runs/quickstart/s1"):
            with pytest.raises(RunError) as caught:
                runs_in(Path(typed))
            assert caught.value.hint == hint


def test_runs_are_found_four_folders_deep_and_not_in_other_runs(
    make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What another user keeps private hides none."""
    found, private, listed = [make_run(name) for name in ("a/b/c/d", "a/e")], tmp_path / "a" / "b" / "f", Path.iterdir
    for name in ("a/b/c/x/y", "a/e/inside"):
        make_run(name)
    private.mkdir()

    def refusing(path: Path) -> Iterator[Path]:
        if path == private:
            raise PermissionError
        return listed(path)

    monkeypatch.setattr(Path, "iterdir", refusing)
    assert run_folder.runs_below(tmp_path) == found
    assert run_folder.runs_below(tmp_path / "gone") == []


def test_commands_name_a_run_as_one_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert RunFolder(Path.cwd() / "my runs" / "one").typed == "'my runs/one'"
    code = {file: file.read_text() for file in Path(run_folder.__file__).parents[1].rglob("*.py")}
    assert [file for file, text in code.items() if re.search(r"rlhf [a-z]+ \{[^}]*\.shown\}", text)] == []


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A durable one and its folder are flushed, in this order."""
    flushed: list[os.stat_result] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: flushed.append(os.fstat(descriptor)))
    file = tmp_path / "file"
    write_text(file, "old")
    assert flushed == []
    write_text(file, "new", durable=True)
    assert [(seen.st_ino, seen.st_size) for seen in flushed[:1]] == [(file.stat().st_ino, 3)]
    assert [seen.st_ino for seen in flushed[1:]] == [tmp_path.stat().st_ino]
    with pytest.raises(UnicodeEncodeError):
        write_text(file, "\ud800")
    run_folder.write_rows(tmp_path / "rows", [{"password": "é", "place": Path("x")}, {}])
    rows = '{"password": "é", "place": "x"}\n{}\n'
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"file": "new", "rows": rows}


@pytest.mark.parametrize(("content", "got"), [("", "an empty file"), ("{", "half of it")])
def test_an_unreadable_file_is_described_by_what_is_in_it(content: str, got: str, tmp_path: Path) -> None:
    (tmp_path / "status.json").write_text(content)
    assert run_folder.unreadable(tmp_path / "status.json", "half of it").got == got
