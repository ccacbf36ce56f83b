"""Type every command of every page, each page in one shell in an empty folder, without a network.

`typed_pages` defines the meaning of blocks. A training whose command has no length is cut to two steps, a search to
ten. A tutorial is typed in full, and its `console` blocks must appear in the output, except for numbers. All commands
of a page are typed; the test then lists every one that ended with an unexpected exit code, with its output.
"""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path

import pytest

from tests.documents.quoted_commands import ROOT
from tests.documents.typed_pages import Block, blocks, pages, script_of, type_script

LIMIT_S = 1200
AT_HAND = ROOT / "tests" / "documents" / "at_hand.sh"
_SHELL = """
rlhf() {
  local code=0 shorter=()
  if [ "$1" = train ] && [[ $page != docs/tutorials/* && "$*" != *max_steps=* && "$*" != *run.resume=* ]]; then
    shorter=(trainer.args.max_steps=2)
    [[ " $*" != *" sweep="* ]] || shorter=(trainer.args.max_steps=10 sweep.trials=3)
  fi
  timeout "$limit_s" "$PYTHON" -m rlhf_cli "$@" "${shorter[@]}" > "$said/out" 2> "$said/err" || code=$?
  cat "$said/out"; cat "$said/err" >&2
  [[ $at = before* ]] || echo x >> "$said/typed"
  if [ "$code" != "$exits" ]; then
    { echo "$at: exit code $code, not $exits: rlhf $*"; tail -n 40 "$said/out" "$said/err"; } >> "$said/otherwise"
  fi
}
python() { "$PYTHON" "$@"; }
trap '[ $? = 0 ] || echo "the page ends at $at" >&2' EXIT
"""


_CONSOLE = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
_NUMBER, _CURVE = re.compile(r"[-+]?\d[\d.,e]*"), re.compile("[▁▂▃▄▅▆▇█]+")


def console_lines(page: str) -> list[str]:
    """Return the lines that the `console` blocks of a page show."""
    lines = [line for block in _CONSOLE.findall(page) for line in block.splitlines()]
    return [line for line in lines if line.strip() not in ("", "...") and not line.startswith("$ ")]


def without_numbers(line: str) -> str:
    """Return a line without its numbers, curves, frame and column widths."""
    return " ".join(_CURVE.sub("", _NUMBER.sub("#", line.strip("│ "))).split())


def typed_pages() -> dict[str, list[Block]]:
    """Return page -> blocks, for pages with commands to type."""
    read = {page.relative_to(ROOT).as_posix(): page.read_text(encoding="utf-8") for page in pages()}
    found = {name: blocks(text, name) for name, text in read.items()}
    return {name: page for name, page in found.items() if any(block.commands for block in page)}


PAGES = typed_pages()


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_every_command_ends_as_the_page_says(name: str, tmp_path: Path) -> None:
    said, place = tmp_path / "said", tmp_path / "place"
    said.mkdir()
    place.mkdir()
    for file in ("otherwise", "typed"):
        (said / file).touch()
    variables = {"WANDB_MODE": "offline", "HOME": str(tmp_path), "said": str(said), "limit_s": str(LIMIT_S)}
    variables |= {"page": name, "COLUMNS": "100"}
    done = type_script(_SHELL + AT_HAND.read_text(encoding="utf-8") + script_of(PAGES[name]), place, **variables)
    otherwise = (said / "otherwise").read_text(encoding="utf-8")
    assert not otherwise, otherwise
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    shown = set(map(without_numbers, (done.stdout + done.stderr).splitlines()))
    page = (ROOT / name).read_text(encoding="utf-8")
    missing = [line for line in console_lines(page) if without_numbers(line) not in shown]
    assert not missing, "\n".join(["nothing printed this:", *missing, "", "printed:", done.stdout])
    typed = len((said / "typed").read_text().split())
    assert typed >= sum(len(block.commands) for block in PAGES[name]), "some commands of the page were never reached"


SCRIPT = ROOT / "docs" / "quickstart.py"


def test_the_quickstart_from_python_has_at_most_fifty_lines() -> None:
    assert len(SCRIPT.read_text(encoding="utf-8").splitlines()) <= 50


@pytest.mark.slow
@pytest.mark.usefixtures("place")
def test_the_quickstart_from_python_trains_four_runs_and_prints_a_verdict(tmp_path: Path, capsys) -> None:
    runpy.run_path(str(SCRIPT))["main"](steps=2, root=tmp_path)
    states = [json.loads(file.read_text())["state"] for file in tmp_path.glob("quickstart/*/status.json")]
    assert states == ["finished"] * 4
    printed = capsys.readouterr().out
    assert "rewards.brevity.weight" in printed
    assert "correct between 0 and 0.5 (2 seeds)" in printed
