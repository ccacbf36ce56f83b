"""The mutated rooms and the tests that belong to them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Project:
    """A folder of code with its tests.

    copied: folders and files that the tests need. tests: mutated room (a folder or a file) -> folders or files of
    tests; a file belongs to the innermost room that contains it. warm: modules to import once before forking
    (`module:name` for a lazily imported name). about: the beginning of the page. explanations, page, cache: files and a
    folder below the root.
    """

    root: Path
    copied: tuple[str, ...]
    tests: dict[str, tuple[str, ...]]
    warm: tuple[str, ...] = ()
    about: str = ""
    explanations: str = "scripts/mutants/survivors.toml"
    page: str = "docs/development/mutants.md"
    cache: str = "build/mutants"

    def mutated_files(self) -> Iterator[str]:
        """Yield every file that is mutated, as a path below the root, room by room."""
        for room in self.tests:
            path = self.root / room
            for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
                name = file.relative_to(self.root).as_posix()
                if file.name != "__init__.py" and self.room(name) == room:
                    yield name

    def room(self, mutated: str) -> str:
        """Return the room that a file belongs to."""
        return max((room for room in self.tests if Path(mutated).is_relative_to(room)), key=len)

    def test_files(self, mutated: str, copy: Path) -> list[str]:
        """Return the files of tests in a copy of the project that belong to a file."""
        files = []
        for place in self.tests[self.room(mutated)]:
            path = copy / place
            found = sorted(path.glob("test_*.py")) if path.is_dir() else [path]
            files += [file.relative_to(copy).as_posix() for file in found]
        return files


_ABOUT = """
A mutant is the code with one small mistake: a comparison reversed or off by one, a sign, a number, an omitted argument,
a removed statement. The tests that reach the statement run on it. If they all pass, the mutant survives.

    make mutants                                                 # draw the sample again, write this page
    python -m scripts.mutants --file rlhf_cli/numerics/ppo.py    # every mutant of one file
    python -m scripts.mutants --list                             # print the mutants

The command fails if a survivor has no explanation: write a test that kills it, or explain it in
`scripts/mutants/survivors.toml` (the command prints the entry to fill in). An *equivalent* mutant behaves like the
original code; no test can kill it.

Tests were added for the survivors of this sample, so a fresh one (`--seed N --grep rlhf_cli`, which only prints) finds
more: `--seed 20261129 --lines 120` killed 240 of the 301 that it judged (80 %). A test that times out counts as failed.
mutmut, cosmic-ray and mutatest skip decorated functions, start a process per mutant, or are not maintained.
"""

OURS = Project(
    root=Path(__file__).resolve().parents[2],
    about=_ABOUT,
    copied=("rlhf_cli", "conf", "tests", "scripts", "docs", "pyproject.toml", "README.md"),
    tests={
        "rlhf_cli/algorithms": (
            *("tests/algorithms", "tests/analysis/whatif", "tests/trainers/test_stacked_rewards.py"),
            "tests/trainers/ppo/test_rollout_by_loops.py",
        ),
        "rlhf_cli/evaluation/audit": ("tests/evaluation/audit", "tests/cli/verbs/test_audit.py"),
        "rlhf_cli/analysis/comparison": ("tests/analysis/comparison", "tests/display/test_comparison_shown.py"),
        "rlhf_cli/analysis/diagnosis": ("tests/analysis/diagnosis", "tests/cli/verbs/test_why.py"),
        "rlhf_cli/analysis/expectations.py": ("tests/analysis/expectations",),
        "rlhf_cli/analysis/reproducibility.py": ("tests/analysis/expectations",),
        **{
            f"rlhf_cli/analysis/{name}.py": ("tests/analysis/whatif",)
            for name in ("what_if", "whatif_request", "stored_rounds")
        },
        "rlhf_cli/data": ("tests/data", "tests/models", "tests/plan"),
        "rlhf_cli/evaluation": (
            *("tests/evaluation", "tests/cli/verbs/test_eval.py", "tests/cli/verbs/test_generate.py"),
            *(
                "tests/cli/verbs/test_score_replay.py",
                "tests/rewards/stack",
                "tests/launch/test_interactive_answers.py",
            ),
        ),
        "rlhf_cli/models": ("tests/models", "tests/models/decoding", "tests/trainers/generation", "tests/trainers/ppo"),
        "rlhf_cli/models/packing": ("tests/models/packing", "tests/trainers/passes"),
        "rlhf_cli/numerics": ("tests/numerics",),
        "rlhf_cli/plan": (
            *("tests/plan", "tests/plan/memory", "tests/data", "tests/algorithms/test_user_function.py"),
            *("tests/trainers/assemble/test_kept_failures.py", "tests/trainers/test_teachers.py"),
        ),
        "rlhf_cli/rewards": ("tests/rewards", "tests/services/sandbox"),
        "rlhf_cli/rewards/stack": ("tests/rewards/stack", "tests/trainers/test_stacked_rewards.py"),
        "rlhf_cli/runs": (
            *("tests/runs", "tests/runs/tracking", "tests/trainers/test_whole_checkpoints.py"),
            *(
                "tests/trainers/test_resume_faults.py",
                "tests/launch/test_run_states.py",
                "tests/cli/verbs/test_status.py",
            ),
        ),
        "rlhf_cli/services": ("tests/services", "tests/services/sandbox", "tests/rewards"),
        "rlhf_cli/sweeps": ("tests/sweeps", "tests/cli/verbs/test_dry_run.py"),
        "rlhf_cli/tables": (
            *("tests/tables", "tests/plan/test_argument_checks.py"),
            *("tests/documents/test_tables_of_pages.py", "tests/config/test_launch_rules.py"),
            "tests/trainers/assemble/test_library_refusals.py",
        ),
        "rlhf_cli/trainers": (
            *("tests/trainers", "tests/trainers/assemble", "tests/trainers/passes", "tests/trainers/generation"),
            *("tests/rewards/test_toy.py", "tests/rewards/stack/test_truncated_rows.py"),
        ),
        "rlhf_cli/trainers/assemble": (
            *("tests/trainers/assemble", "tests/trainers/test_reward_training.py", "tests/trainers/ppo"),
            *("tests/trainers/test_learning_from_rows.py", "tests/trainers/test_chat_template.py"),
            *("tests/trainers/test_same_numbers.py", "tests/trainers/test_own_class.py"),
            *("tests/models/test_what_loaders_are_given.py", "tests/trainers/test_logged_parts.py"),
            "tests/analysis/whatif/test_what_if.py",
        ),
        "rlhf_cli/trainers/ppo": (
            *("tests/trainers/ppo", "tests/models/test_critic_model.py"),
            "tests/trainers/test_finite_steps.py",
        ),
    },
    warm=(
        *("numpy", "scipy.stats", "torch", "datasets", "accelerate", "peft", "wandb", "hydra", "pydantic", "rich"),
        *("transformers:AutoModelForCausalLM", "transformers:AutoTokenizer", "transformers:Trainer", "torch.func"),
        *("trl:GRPOTrainer", "trl:RLOOTrainer", "trl:RewardTrainer", "trl:SFTTrainer", "trl:DPOTrainer"),
    ),
)
