"""With `--json`, stdout is one JSON value; all other output goes to stderr."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import numpy as np
import pytest

from rlhf_cli.cli import main
from rlhf_cli.cli.output import complete_hints, problems_json
from rlhf_cli.errors import ConfigError, Problems
from rlhf_cli.text.json_values import write_json
from rlhf_cli.text.redaction import CONTROL

CHATTY = """
import os, subprocess, sys
from rlhf_cli.cli.output import json_alone, print_json
print("before")
with json_alone():
    print("by print")
    os.write(1, b"by a library in C\\n")
    subprocess.run(["echo", "by a child"], check=True)
    print_json({"answer": [1.5, float("nan")]})
print("after")
"""


def test_other_output_goes_to_stderr() -> None:
    done = subprocess.run([sys.executable, "-c", CHATTY], capture_output=True, text=True, check=True)
    first, *middle, last = done.stdout.splitlines()
    assert (first, last) == ("before", "after")
    assert json.loads("\n".join(middle)) == {"answer": [1.5, None]}
    assert sorted(done.stderr.splitlines()) == ["by a child", "by a library in C", "by print"]


def test_every_problem_is_an_object() -> None:
    error = ConfigError("no", where="a.yaml:3", got=5, expected="6", hint="a=6")
    as_object: dict[str, object] = {"kind": "ConfigError", "what": "no", "where": "a.yaml:3", "got": "5"}
    as_object |= {"expected": "6", "try": "a=6", "advice": None}
    assert problems_json(Problems([error, error])) == {"problems": [as_object, as_object]}
    in_words = ConfigError("no", where="a.yaml:3", got=5, expected="6", hint="a=6", advice="think again")
    assert problems_json(in_words) == {"problems": [as_object | {"advice": "think again"}]}
    assert str(in_words).endswith("  try:      a=6\n  advice:   think again")
    assert problems_json(ValueError("x"))["problems"][0]["kind"] == "ValueError"


@pytest.mark.usefixtures("place")
def test_mistakes_are_printed_to_both_streams(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "+exp=quickstart", "trainer.args.learning_rte=1", "seeed=2", "--json"]) == 2
    said = capsys.readouterr()
    problems = json.loads(said.out)["problems"]
    assert {problem["kind"] for problem in problems} == {"ConfigError"}
    assert sum("learning_rte" in f"{problem['what']} {problem['where']}" for problem in problems) == 1
    assert len(problems) == 2
    assert said.err.startswith("error: ")


def test_a_signal_is_printed_to_both_streams(monkeypatch, capsys: pytest.CaptureFixture[str]) -> None:
    def signalled(_: object) -> int:
        signal.raise_signal(signal.SIGTERM)
        return 0

    monkeypatch.setattr("rlhf_cli.cli.verbs.doctor.run", signalled)
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)  # so that the test survives an unhandled signal
    try:
        assert main(["doctor", "--json"]) == 75
    finally:
        signal.signal(signal.SIGTERM, before)
    said = capsys.readouterr()
    assert json.loads(said.out)["problems"][0]["what"] == "stopped by SIGTERM"
    assert said.err.startswith("stopped by SIGTERM")


@pytest.mark.parametrize(
    "value", [2**70, {1: [True, None]}, "half \ud83d", "\x7f and \x9b[1m \u202e é", 1e16, [], {}, np.float64(0.5)]
)
def test_written_json_reads_back_equal(value: object) -> None:
    written: list[str] = []
    write_json({"kept": value}, written.append)
    assert json.loads(written[0]) == json.loads(json.dumps({"kept": value}))
    assert not CONTROL.search(written[0])
    assert "\n  " in written[0]


COMPLETED: list[tuple[str | None, str, list[str], str | None]] = [  # where, hint, words, completed hint
    (None, "rlhf train -m ... 'seed=0,1'", ["+exp=mine", "seed=0,1"], "rlhf train -m +exp=mine 'seed=0,1'"),
    (None, "rlhf train -m ... 'seed=it's'", ["seed=1"], "rlhf train -m  'seed=it's'"),
    (None, "rlhf eval RUN", ["runs/a"], "rlhf eval runs/a"),
    ("sed (command line)", "seed", ["+exp=mine", "sed=3"], "seed=3"),
    ("rewards.a (command line)", "rewards.b.weight", ["rewards.a.weight=3"], "rewards.b.weight=3"),
    ("lr (command line)", "trainer.args.learning_rate", ["lr=0.5"], "trainer.args.learning_rate=0.5"),
    ("args (command line)", "trainer.args.beta", ["args={beta: 1}"], "trainer.args.beta"),
    ("rewards.a.fn (command line)", "./f.py:g", ["rewards.a.fn=f.g"], "rewards.a.fn=./f.py:g"),
    *((f"a.fn{place}", "./f.py:g", ["runs/a"], "a.fn=./f.py:g") for place in ("", " (runs/a/config.yaml:7)")),
    ("a.fn (conf/exp/mine.yaml:7)", "./f.py:g", ["+exp=mine"], "./f.py:g"),
    ("tokenizer (command line)", "model.tokenizer", ["tokenizer.side=left"], "model.tokenizer"),
    ("sed (conf/exp/mine.yaml:3)", "seed", ["+exp=mine"], "seed"),
    (None, "rlhf eval RUN", ["+exp=mine"], None),
    *((None, gap, ["seed"], None) for gap in ("export KEY=...", "data.rename.answer=COLUMN", "seed=VALUE")),
]


@pytest.mark.parametrize(
    ("error", "words", "told"),
    [(ConfigError("x", where=where, hint=hint), words, told) for where, hint, words, told in COMPLETED],
)
def test_hints_are_completed_with_the_typed_words(error: ConfigError, words: list[str], told: str | None) -> None:
    """A hint behind `try:` can be typed as it is; one with a gap becomes advice."""
    hint = error.hint
    complete_hints(error, "train", words)
    (problem,) = problems_json(error)["problems"]  # type: ignore[misc]
    assert (problem["try"], problem["advice"]) == ((None, hint) if told is None else (told, None))
    assert ("  advice:" in str(error)) == (told is None)
