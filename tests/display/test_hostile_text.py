"""Every screen shows foreign text (rows, answers, errors, names, files) without its control codes.

What a terminal acts on is ECMA-48's: C0 and C1, ESC first; what turns the reading direction is Unicode's UAX 9.
"""

from __future__ import annotations

import io
import json
import re
import shutil
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pyarrow.parquet
import pytest
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text
from tqdm import tqdm

import rlhf_cli
from rlhf_cli.cli import main
from rlhf_cli.display.terminal import Screen
from rlhf_cli.process import lasting_output
from rlhf_cli.text.redaction import SafeStream, safe_output
from tests.support.small_runs import SMALL

PAYLOAD = "PWN\x1b[2J\x1b]0;title\x07\x9b31m\u202egnp\u2066\u2069x\r\x08\x7f\x00z[/red][link=http://evil]"
"""Clears the screen, sets its title, recolours, turns the direction, goes back; and rich's own markup."""
ACTED_ON = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
REWARDS = f"""
PAYLOAD = {PAYLOAD!r}

def loud(completions, note, **kwargs):
    print(PAYLOAD)
    return [float(len(completion) % 3) for completion in completions]

def fails(completions, note, **kwargs):
    raise ValueError(PAYLOAD)
"""
EXPERIMENT = """# A caption PWN\u202e\u2066 that turns around.
defaults: [quickstart, _self_]
rewards:
  correct: null
  loud: {fn: ./mine.py:loud}
"""
BAD = "runs/quickstart/bad"
RUN = "runs/quickstart/good"
ODD = "runs/quickstart/PWN\x1b[2J\u202e[/red]"
"""A copy of the run in a folder of this name: who unpacks an archive did not choose it."""
WORDS = [
    *(*SMALL, "data=file", "data.path=rows.jsonl", "~data.args", "data.eval.fraction=0.25", "data.eval.path=null"),
    *("~rewards.correct", "~rewards.format", "trainer.args.max_steps=2", "trainer.args.log_completions=true"),
    *("rewards.loud.fn=./mine.py:loud", "rewards.brevity.weight=0.5"),
]


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory, model_cache: Path) -> Path:
    """A folder with hostile rows, rewards, answers and run names in it; `trained.txt` is what training them printed."""
    place = tmp_path_factory.mktemp("hostile")
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed), redirect_stderr(printed):
        patch.chdir(place)
        patch.setenv("RLHF_CACHE", str(model_cache))
        (place / "mine.py").write_text(REWARDS)
        (place / "conf" / "exp").mkdir(parents=True)
        (place / "conf" / "exp" / "odd.yaml").write_text(EXPERIMENT)
        rows = [{"prompt": f"{one}+1=", "a": one, "b": 1, "note": PAYLOAD} for one in range(64)]
        (place / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        assert main(["train", *WORDS, "run.name=good"]) == 0
        assert (
            main(["train", *WORDS, "run.name=bad", "rewards.fails.fn=./mine.py:fails", "rewards.fails.trial=false"])
            == 1
        )
        (place / "trained.txt").write_text(printed.getvalue(), encoding="utf-8", errors="surrogatepass")
        for table in (place / RUN / "completions").glob("*.parquet"):
            columns = pyarrow.parquet.read_table(table).to_pydict()
            changed = {name: [PAYLOAD] * len(columns[name]) for name in ("prompt", "completion", "note")}
            pyarrow.parquet.write_table(pyarrow.table({**columns, **changed}), table)
        shutil.copytree(place / RUN, place / ODD)
        answers = [{**row, "completion": PAYLOAD} for row in rows[:8]]
        (place / "answers.jsonl").write_text("".join(json.dumps(row) + "\n" for row in answers))
        (place / "broken.jsonl").write_text(json.dumps({"prompt": PAYLOAD}) + f"\n{PAYLOAD}\n")
    return place


SCREENS = [
    ["train", *WORDS, f"run.name={PAYLOAD}"],
    ["train", *WORDS, f"rewards.loud.args.{PAYLOAD}=1"],
    ["train", *WORDS, "--dry-run", f"track.notes={PAYLOAD}"],
    ["check", *WORDS, "--rows", "3"],
    ["check", *WORDS, "data.path=broken.jsonl"],
    ["check", f"+exp={PAYLOAD}"],
    ["show", *WORDS, f"track.notes={PAYLOAD}"],
    ["list", "exp"],
    ["status", "runs"],
    ["why", BAD],
    ["why", ODD],
    ["compare", RUN, ODD],
    ["score", *WORDS, "--completions", "answers.jsonl"],
    ["score", *WORDS, "--completions", RUN],
    ["score", BAD, "--completions", f"{BAD}/failures/fails-ValueError.jsonl"],
    ["generate", ODD, "-n", "2", "--limit", "4"],
    ["eval", ODD, "--samples", "2"],
    ["audit", *WORDS],
    ["whatif", ODD, "rewards.loud.weight=3"],
    ["resume", ODD, "trainer.args.lr_scheduler_type=constant"],
    ["verify", ODD],
    ["reproduce", ODD],
    ["sync", ODD],
    [PAYLOAD],
]


@pytest.fixture
def said(hostile: Path, model_cache: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):
    """`said(words)`: what a command prints to stdout, and all that it prints, typed in the hostile folder."""
    monkeypatch.chdir(hostile)
    monkeypatch.setenv("RLHF_CACHE", str(model_cache))

    def call(*words: str) -> tuple[str, str]:
        main(list(words))
        printed = capfd.readouterr()
        return printed.out, printed.out + printed.err

    return call


@pytest.mark.whole
def test_every_screen(said) -> None:
    trained = Path("trained.txt").read_text(encoding="utf-8", errors="surrogatepass")
    assert (trained.count("PWN") > 1, ACTED_ON.findall(trained)) == (True, [])
    for words in SCREENS:
        _, printed = said(*words)
        assert "PWN" in printed, words  # negative control: it is shown
        assert (ACTED_ON.findall(printed), "MarkupError" in printed) == ([], False), words


@pytest.mark.parametrize(
    "words",
    [
        ["score", *WORDS, "--completions", "answers.jsonl"],
        ["check", *WORDS, "data.path=broken.jsonl"],
        ["status", "runs"],
    ],
    ids=lambda words: str(words[0]),
)
def test_json_stays_json(said, words: list[str]) -> None:
    """What is read back holds the very codes: JSON's own escapes stand for them."""
    out, printed = said(*words, "--json")
    assert ACTED_ON.findall(printed) == []
    assert re.search(r"PWN(\x1b|\\x1b)\[2J", str(json.loads(out)))


def test_what_is_ours_reaches_the_terminal() -> None:
    """Colours are ours; the same codes within a text, a cell or an argument of print are not."""
    terminal = io.StringIO()
    screen = Screen(file=SafeStream(terminal), force_terminal=True, color_system="standard", width=200)
    table = Table("PWN\x1b[2J", title=PAYLOAD)
    table.add_row(Text(PAYLOAD, style="red"), PAYLOAD)
    plain = "12 runs in /tmp/x, 'abc': True"  # which rich would colour
    texts = (f"[green]ok[/] {PAYLOAD}", f"[/] closes nothing {PAYLOAD}", PAYLOAD, plain)
    for shown in (*texts, Text(PAYLOAD, style="bold"), table, Panel(PAYLOAD, title=Text(PAYLOAD))):
        screen.print(shown)
    print(PAYLOAD, file=SafeStream(terminal))
    written = terminal.getvalue()
    assert ("\x1b[32mok\x1b[0m" in written, plain in written) == (True, True)
    rest = re.sub(r"\x1b\[[0-9;]*m", "", written)
    assert ("PWN" in rest, "evil" in rest) == (True, True)  # as text: a tag of ours makes no link
    assert ACTED_ON.findall(rest) == []
    richs_own = io.StringIO()
    Console(file=richs_own, width=200).print(Text(PAYLOAD))
    assert {"\x1b", "\x9b", "\u202e"} <= set(ACTED_ON.findall(richs_own.getvalue())), "negative control"


def test_every_console_is_a_screen() -> None:
    """A console of rich's own would pass control codes on, so only `Screen` may be used."""
    sources = {file: file.read_text() for file in Path(rlhf_cli.__file__).parent.rglob("*.py")}
    assert [file for file, source in sources.items() if re.search(r"(?<![\w.])Console\(", source)] == []


@pytest.mark.parametrize("changes", [(safe_output, lasting_output), (lasting_output, safe_output)])
def test_bars_of_libraries_move_the_cursor_and_foreign_text_does_not(changes, capsys) -> None:
    """The command makes its output safe outside of the stream that outlives a closed pipe, a rank inside."""
    outer, inner = changes
    with outer(), inner():
        for _ in tqdm(range(1), file=sys.stdout):
            print("a\rb")
    shown = capsys.readouterr().out
    assert shown.count("\r") == shown.count("it/s]") == 2
    assert "a\\x0db" in shown
