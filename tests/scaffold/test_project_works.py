"""What a project's README.md and AGENTS.md name is typed in it, and works.

In the fast tests the runs are cut to two steps and the sweeps left out; the slow ones type every line as it stands.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from rlhf_cli.cli import main
from rlhf_cli.scaffold.trainings import TRAININGS
from rlhf_cli.verbs import VERBS

SHORT = [
    *("trainer.args.max_steps=2", "trainer.args.per_device_train_batch_size=8", "data.select=60"),
    *("launch=cpu", "track=none"),
]


def commands_of(document: str) -> list[list[str]]:
    """The words of every command in the fenced blocks of a document."""
    blocks = document.split("```")[1::2]
    return [shlex.split(line, comments=True) for block in blocks for line in block.strip().splitlines()]


def typed(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Type a command; returns what it printed. It must not fail, and print JSON where that was asked."""
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
def test_only_verbs_that_there_are_and_folders_that_were_made(name: str, place: Path) -> None:
    assert main(["init", "--trains", name]) == 0
    for document in ("README.md", "AGENTS.md"):
        commands = commands_of((place / document).read_text())
        assert len(commands) > 8
        assert {words[1] for words in commands if words[0] == "rlhf"} <= set(VERBS)
        named = {word.removeprefix("run.name=") for words in commands for word in words if word.startswith("run.name=")}
        used = {word.split("/")[2] for words in commands for word in words if word.startswith("runs/first/")}
        assert used <= named
        assert any("-m" in words for words in commands if words[:2] == ["rlhf", "train"])


@pytest.mark.parametrize(
    ("name", "document"), [("grpo", "AGENTS.md"), pytest.param("reward", "README.md", marks=pytest.mark.slow)]
)
def test_a_document_works_line_by_line(
    name: str, document: str, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", "my project", "--trains", name]) == 0
    capsys.readouterr()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(workplace / "my project")
        small = [*SHORT, *(["trainer.args.num_generations=4"] if TRAININGS[name].generates else [])]
        for words in commands_of(Path(document).read_text()):
            if any(word.endswith(("sweep", "trials")) for word in words):
                continue  # a sweep, or what comes after it
            typed([*words, *small] if words[:2] == ["rlhf", "train"] else words, capsys)
        runs = {path.parent.name for path in Path("runs/first").glob("*/config.yaml")}
        assert runs == ({"trial", "plain"} if document == "AGENTS.md" else {"base", "longer"})


@pytest.mark.slow
@pytest.mark.parametrize("document", ["README.md", "AGENTS.md"])
@pytest.mark.parametrize("name", TRAININGS)
def test_every_line_works_as_it_stands(
    name: str, document: str, workplace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["init", "--trains", name]) == 0
    capsys.readouterr()
    for words in commands_of((workplace / document).read_text()):
        typed(words, capsys)
