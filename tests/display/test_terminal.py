"""Tables too wide, texts cut to their width; a pipe gets no blanks that fill a terminal; a wait has a sign of life."""

from __future__ import annotations

import io
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console
from tqdm import tqdm

from rlhf_cli.cli import main
from rlhf_cli.display import terminal
from rlhf_cli.display.terminal import cut_end, cut_middle, show_blocks, span, spinner
from tests.support.logged_runs import configured, write_run, write_sweep
from tests.support.terminal import printed


def test_a_table_too_wide_is_split_and_each_part_repeats_the_heads() -> None:
    """Of three columns of 20, one fits beside the heads in 30 columns. One name may be a head and a column."""
    metrics = [(name.ljust(20, "-"), ["0.1", "0.2"]) for name in ("run", "b", "c")]
    heads = [("run", ["1-1", "long name"]), ("n", ["2", "10"])]
    lines = printed(lambda console: show_blocks(console, heads, metrics), 40)
    of_first = [f"run         n  {metrics[0][0]}", f"1-1         2  {'0.1':>20}", f"long name  10  {'0.2':>20}", ""]
    assert lines[:4] == of_first
    assert [line for line in lines if line.startswith("run")] == [f"run         n  {title}" for title, _ in metrics]
    console = Console(file=(out := io.StringIO()), width=30, force_terminal=True, color_system="standard")
    show_blocks(console, [("run", ["a", "b"])], [("m", ["0.1", "0.3"])], ["", "dim"])
    assert ("\x1b[2m0.3" in out.getvalue(), "\x1b[2m0.1" in out.getvalue()) == (True, False)


def test_texts_are_cut_to_cells_and_a_wide_sign_has_two() -> None:
    cut = {"abcdefgh": ("abcdef…", "abc…fgh"), "中文很宽的": ("中文很…", "中 … 的"), "中文": ("中文", "中文")}
    assert {text: (cut_end(text, 7), cut_middle(text, 7)) for text in cut} == cut


def test_a_duration_is_rounded_before_its_unit_is_chosen() -> None:
    texts = {59.7: "1 min", 3599.9: "1 h 0 min", 40.2: "40 s", 187_300.0: "2 d 4 h", None: ""}
    assert {span_s: span(span_s) for span_s in texts} == texts


@pytest.mark.parametrize(
    "words", [["why", "runs/exp/one"], ["why", "runs"], ["compare", "runs"], ["status", "runs"], ["list"]], ids=" ".join
)
def test_no_line_in_a_pipe_ends_in_blanks(place: Path, capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    curves = {name: [0.5] * 40 for name in ("reward", "rewards/correct/mean")}
    curves |= {f"rewards/brevity/{name}": [0.0] * 40 for name in ("mean", "std")} | {"frac_reward_zero_std": [1.0] * 40}
    curves |= {"kl": [0.1 * step for step in range(40)], "entropy": [2.0 - 0.05 * step for step in range(40)]}
    write_run(place / "runs" / "exp" / "one", configured(), curves)
    write_sweep(place / "runs" / "exp" / "sweep", {0.0: [0.5, 0.6], 0.5: [0.75, 0.7]})
    main(words)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 1
    assert [line for line in lines if line != line.rstrip()] == []
    if words[1:] == ["runs/exp/one"]:
        said = "\n".join(lines)
        assert said.count("kind     ") > 1, "several findings"
        assert said.count("warn.KIND=off") == 1


def test_a_wait_shows_what_takes_long_and_how_far_the_bar_of_a_library_is(capsys, monkeypatch) -> None:
    """A bar of its own would begin a line at every step, below a spinner at a terminal."""
    monkeypatch.setattr(terminal, "_QUIET_S", 0.01)
    with spinner("importing torch") as show:
        show("loading ./big-model")
        deadline, said = time.monotonic() + 60, ""
        while not said and time.monotonic() < deadline:
            time.sleep(0.01)
            said = capsys.readouterr().out
        print("a warning", file=sys.stderr)
        for _ in tqdm(range(4), desc="Tokenizing", mininterval=0):
            time.sleep(0.1)
    printed = capsys.readouterr()
    assert "loading ./big-model ..." in said.splitlines()
    assert "Tokenizing 2/4 ..." in printed.out.splitlines()
    assert printed.err == "a warning\n"
    for quiet_s, is_shown in ((30.0, True), (0.01, False)):  # what is quick or hidden prints nothing
        monkeypatch.setattr(terminal, "_QUIET_S", quiet_s)
        with spinner("importing torch", shown=is_shown):
            time.sleep(0.1)
        assert capsys.readouterr().out == ""


def test_a_long_path_keeps_its_file_name_beside_the_spinner(capsys, monkeypatch) -> None:
    for name, value in {"COLUMNS": "40", "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    with spinner("loading /home/[mine]/a-long-folder/another-long-folder/model") as show:
        show("loading /[a]/model")
    out = capsys.readouterr().out
    assert [text in out for text in ("loading /home/[…", "g-folder/model", "loading /[a]/model")] == [True] * 3


_FIRST_SPINNER = """
import sys
from rlhf_cli.cli import main
from rlhf_cli.display import terminal

def spinner(doing, **_):
    print(doing, "after", *{"torch", "transformers"} & {*sys.modules})
    sys.exit()

terminal.spinner = spinner
main(sys.argv[1:])
"""


@pytest.mark.parametrize("typed", ["train +exp=quickstart track=none", "check +exp=quickstart --rows 1"])
def test_a_screen_that_waits_for_imports_says_so(typed: str, place: Path) -> None:
    """torch and transformers take many seconds to import on a busy machine; the first spinner begins before them."""
    done = subprocess.run([sys.executable, "-c", _FIRST_SPINNER, *typed.split()], capture_output=True, text=True)
    doing, _, imported = done.stdout.splitlines()[-1].partition(" after")
    assert doing.startswith("importing")
    assert imported == ""
