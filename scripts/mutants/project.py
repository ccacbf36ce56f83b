"""The mutated rooms and the tests that judge them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Project:
    """A folder of code with its tests.

    copied: folders and files that the tests need. rooms: mutated folders and files; a file belongs to the innermost
    room that contains it. not_judging: tests that notice a change of any line, or test this tester; judging: the only
    files of tests that judge, if any. warm: modules to import once before forking (`module:name` for a lazily imported
    name). about: the beginning of the page. explanations, page, cache: files and a folder below the root.
    """

    root: Path
    copied: tuple[str, ...]
    rooms: tuple[str, ...]
    not_judging: tuple[str, ...] = ()
    judging: tuple[str, ...] = ()
    warm: tuple[str, ...] = ()
    about: str = ""
    explanations: str = "scripts/mutants/survivors.toml"
    page: str = "docs/development/mutants.md"
    cache: str = "build/mutants"

    def mutated_files(self) -> Iterator[str]:
        """Yield every file that is mutated, as a path below the root, room by room."""
        for room in self.rooms:
            path = self.root / room
            for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
                name = file.relative_to(self.root).as_posix()
                if file.name != "__init__.py" and self.room(name) == room:
                    yield name

    def room(self, mutated: str) -> str:
        """Return the room that a file belongs to."""
        return max((room for room in self.rooms if Path(mutated).is_relative_to(room)), key=len)

    def test_files(self) -> list[str]:
        """Return every file of tests that may judge, as a path below the root."""
        if self.judging:
            return list(self.judging)
        files = [file.relative_to(self.root).as_posix() for file in sorted((self.root / "tests").rglob("test_*.py"))]
        return [file for file in files if not any(Path(file).is_relative_to(place) for place in self.not_judging)]


_ABOUT = """
A mutant is the code with one small mistake: a comparison reversed or off by one, a sign, a number, an omitted argument,
a removed statement. The tests that reach the statement run on it, up to 60 CPU seconds; if all pass, it survives.

    make mutants                                                 # draw the sample again, write this page
    python -m scripts.mutants --file rlhf_cli/numerics/ppo.py    # every mutant of one file
    python -m scripts.mutants --file FILE --tests TEST_FILE      # the same, judged by one file of tests alone

The command fails if a survivor has no explanation: write a test that kills it, or explain it in
`scripts/mutants/survivors.toml` (the command prints the entry to fill in). An *equivalent* mutant behaves like the
original code; no test can kill it.

Tests were added for this sample's survivors, so a fresh one (`--seed N --grep rlhf_cli`, which only prints) finds more.
Of this sample, on 9363bca6 and with 45 seconds a mutant, 547 of 611 (89 %) were killed at first sight, 91 % without the
survivors that behave like the code. These rooms were below 92 % then: data 44 of 49, audit 13 of 16, diagnosis 20 of
23, whatif_request 10 of 12, runs 37 of 47, sweeps 22 of 27, assemble 15 of 18, ppo 9 of 11. Some fall to tests that
the seconds had left out (`--tests` found them), the others to new ones.
Three earlier seeds at first sight: 20261211 killed 369 of 398 (93 %) and 20261212 356 of 389 (92 %), with `--lines 100`
and 20 to 30 seconds, on 9c47de38; 20261213 killed 543 of 607 (89 %), with `--lines 60` and 40 seconds, on 7111609d.
mutmut, cosmic-ray and mutatest skip decorated functions, start a process per mutant, or are not maintained.
"""

OURS = Project(
    root=Path(__file__).resolve().parents[2],
    about=_ABOUT,
    copied=(
        *("rlhf_cli", "conf", "tests", "scripts", "docs", ".ci", "pyproject.toml", "mkdocs.yml", "Makefile"),
        *("constraints.txt", "constraints-low.txt", "constraints-high.txt", ".gitignore"),
        *("README.md", "AGENTS.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE"),
    ),
    rooms=(
        *("rlhf_cli/algorithms", "rlhf_cli/data", "rlhf_cli/evaluation", "rlhf_cli/evaluation/audit"),
        *("rlhf_cli/analysis/comparison", "rlhf_cli/analysis/diagnosis", "rlhf_cli/analysis/verification.py"),
        *("rlhf_cli/analysis/what_if.py", "rlhf_cli/analysis/whatif_request.py", "rlhf_cli/models"),
        *("rlhf_cli/models/packing", "rlhf_cli/numerics"),
        *("rlhf_cli/plan", "rlhf_cli/rewards", "rlhf_cli/rewards/stack", "rlhf_cli/runs", "rlhf_cli/services"),
        *("rlhf_cli/sweeps", "rlhf_cli/tables", "rlhf_cli/trainers", "rlhf_cli/trainers/assemble"),
        "rlhf_cli/trainers/ppo",
    ),
    not_judging=("tests/house", "tests/scripts", "tests/device", "tests/real"),
    warm=(
        *("numpy", "scipy.stats", "torch", "datasets", "accelerate", "peft", "wandb", "hydra", "pydantic", "rich"),
        *("transformers:AutoModelForCausalLM", "transformers:AutoTokenizer", "transformers:Trainer", "torch.func"),
        *("trl:GRPOTrainer", "trl:RLOOTrainer", "trl:RewardTrainer", "trl:SFTTrainer", "trl:DPOTrainer"),
    ),
)
