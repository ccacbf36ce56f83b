"""A file of a run folder that is cut, empty, binary or of another shape: named in one message, with a way out."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from rlhf_cli.cli import main
from rlhf_cli.errors import RunError
from rlhf_cli.runs.metrics_file import read_metrics
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.runs.run_status import read_status, update_status
from tests.support.begun_runs import begun

MakeRun = Callable[..., RunFolder]
DAMAGE = {
    "cut": lambda whole: whole[: len(whole) // 2],
    "empty": lambda whole: b"",
    "binary": lambda whole: bytes(range(128, 256)) * 3,
    "zeros": lambda whole: bytes(len(whole)),
    "another shape": lambda whole: b'["not", "what", "was", "expected"]\n',
}
HARMLESS = {("metrics.jsonl", "cut"), ("metrics.jsonl", "empty"), ("metrics.jsonl", "zeros"), ("config.yaml", "cut")}
"""A kill cuts the last line, and a run without log events has no line. YAML that is cut may still be YAML."""


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a run that are read, as they should be."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("good"))
        folder = begun()
        folder.metrics.write_text("".join(json.dumps({"step": n, "time_s": n, "reward": n / 4}) + "\n" for n in (1, 2)))
        return {file.name: file.read_bytes() for file in folder.path.iterdir() if file.is_file()}


@pytest.fixture
def damaged(good: dict[str, bytes], workplace: Path) -> Callable[[str, str], RunFolder]:
    """`damaged(file, how)`: a run with one file that is not what it should be."""

    def make(name: str, how: str, run: str = "bad") -> RunFolder:
        folder = RunFolder(workplace / "runs" / "quickstart" / run)
        folder.path.mkdir(parents=True)
        for file, content in good.items():
            (folder.path / file).write_bytes(DAMAGE[how](content) if file == name else content)
        return folder

    return make


CASES = [
    (name, how)
    for name in ("config.yaml", "provenance.json", "status.json", "metrics.jsonl")
    for how in DAMAGE
    if (name, how) not in HARMLESS
]


@pytest.mark.parametrize(("name", "how"), CASES)
def test_resume_names_it_and_ends_with_2(damaged, capsys, name: str, how: str) -> None:
    folder = damaged(name, how)
    assert main(["resume", str(folder.path)]) == 2
    told = capsys.readouterr().err
    assert f"{name} cannot be read" in told
    assert str(Path("bad") / name) in told
    assert "try: " in told or "advice: " in told
    assert "Traceback" not in told
    assert told.count("error:") == 1


@pytest.mark.parametrize(("name", "how"), [*((name, "cut") for name in ("status.json", "provenance.json")), *CASES[:2]])
def test_compare_goes_on_with_the_rest(damaged, capsys, name: str, how: str) -> None:
    damaged("none", how, run="fine")
    damaged(name, how)
    assert main(["compare", "runs/quickstart"]) == 0
    told = capsys.readouterr().out
    assert "fine" in told
    assert "left out: 1 unreadable run" in told
    assert f"{name} cannot be read" in told


class TestMetrics:
    def test_zeros_at_the_end_are_what_a_power_cut_leaves(self, tmp_path: Path) -> None:
        file = tmp_path / "metrics.jsonl"
        file.write_bytes(b'{"step": 1, "time_s": 0.5}\n' + bytes(4096))
        assert [event["step"] for event in read_metrics(file)] == [1]

    @pytest.mark.parametrize("line", [b"3", b'["a"]', b'{"loss": 1}', b'{"step": "x", "time_s": 1}', b"\xff\xfe"])
    def test_a_line_in_the_middle_is_named_by_its_number(self, tmp_path: Path, line: bytes) -> None:
        file = tmp_path / "metrics.jsonl"
        good = b'{"step": 1, "time_s": 0.5}\n'
        file.write_bytes(good + line + b"\n" + good)
        with pytest.raises(RunError) as caught:
            read_metrics(file)
        assert str(caught.value.got).startswith("line 2: ")


class TestStatus:
    def test_a_run_does_not_die_of_a_status_that_somebody_damaged(self, make_run: MakeRun) -> None:
        folder = make_run()
        folder.status.write_text('{"state": "runn')
        update_status(folder, step=4)
        assert (read_status(folder).state, read_status(folder).step) == ("running", 4)
