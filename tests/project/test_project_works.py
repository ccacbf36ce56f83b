"""The commands in README.md and AGENTS.md of a new project work.

The fast test cuts the runs to two steps and skips sweeps. The slow one types every line unchanged.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from rlhf_cli.cli import main
from rlhf_cli.cli.verbs import VERBS
from rlhf_cli.project.own_rows import TRAININGS

pytestmark = pytest.mark.whole

SHORT = [
    *("trainer.args.max_steps=2", "trainer.args.per_device_train_batch_size=8", "data.select=60"),
    *("launch=cpu", "track=none"),
]

AS_IT_STANDS = [*((name, "README.md") for name in ("grpo", "sft")), ("grpo", "AGENTS.md")]


def commands_of(document: str) -> list[list[str]]:
    blocks = document.split("```")[1::2]
    return [shlex.split(line, comments=True) for block in blocks for line in block.strip().splitlines()]


def typed(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Type a command, which must succeed and print valid JSON with --json; return its output."""
    if words[0] == "python":
        done = subprocess.run([sys.executable, *words[1:]], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout
    assert words[0] == "rlhf"
    code = main(words[1:])
    said = capsys.readouterr()
    assert code == 0, (words, said.err)
    if "--json" in words:
        json.loads(said.out)
    return said.out


@pytest.mark.parametrize("name", TRAININGS)
def test_documents_name_existing_verbs_and_their_own_runs(name: str, place: Path) -> None:
    assert main(["init", "--trains", name]) == 0
    for document in ("README.md", "AGENTS.md"):
        commands = commands_of((place / document).read_text())
        assert len(commands) > 8
        assert {words[1] for words in commands if words[0] == "rlhf"} <= set(VERBS)
        named = {word.removeprefix("run.name=") for words in commands for word in words if word.startswith("run.name=")}
        used = {word.split("/")[2] for words in commands for word in words if word.startswith("runs/first/")}
        assert used <= named
        assert any("-m" in words for words in commands if words[:2] == ["rlhf", "train"])


def type_all(document: str, capsys: pytest.CaptureFixture[str], small: Sequence[str] = (), *, sweeps: bool) -> None:
    """Type every command of a document, trainings with the words `small`; skip sweeps and trials without `sweeps`."""
    for words in commands_of(Path(document).read_text()):
        if sweeps or not any(word.endswith(("sweep", "trials")) for word in words):
            typed([*words, *small] if words[:2] == ["rlhf", "train"] else words, capsys)


def short(name: str) -> list[str]:
    return [*SHORT, *(["trainer.args.num_generations=4"] if TRAININGS[name].generates else [])]


def test_a_document_works_line_by_line(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "my project", "--trains", "grpo"]) == 0
    capsys.readouterr()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(workplace / "my project")
        type_all("AGENTS.md", capsys, short("grpo"), sweeps=False)
        assert {path.parent.name for path in Path("runs/first").glob("*/config.yaml")} == {"trial", "plain"}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "document"), AS_IT_STANDS)
def test_every_line_works_unchanged(name: str, document: str, workplace: Path, capsys) -> None:
    assert main(["init", "--trains", name]) == 0
    capsys.readouterr()
    type_all(document, capsys, sweeps=True)
