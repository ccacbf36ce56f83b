"""Tab completion: the candidates of a line, in a real bash too, without slow imports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rlhf_cli.cli.options import usage_of
from rlhf_cli.cli.verbs import VERBS
from rlhf_cli.cli.verbs.completion import candidates
from rlhf_cli.config.schema.reward_sections import Reward

pytestmark = pytest.mark.usefixtures("place")
BREAKS = " \t\n\"'@><=;|&(:"
"""The characters at which bash breaks words by default."""


def offered(line: str) -> list[str]:
    return candidates(line.split(" "))


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("rlhf tr", ["train"]),
        ("rlhf --v", ["--version"]),
        ("rlhf train +exp=qu", ["+exp=quickstart"]),
        ("rlhf train trainer=rl", ["trainer=rloo"]),
        ("rlhf train +exp=quickstart rewards.brevity.wei", ["rewards.brevity.weight="]),
        ("rlhf train rewards.brevity.normalize=b", ["rewards.brevity.normalize=batch"]),
        ("rlhf train launch.slurm.p", ["launch.slurm.partition="]),
        ("rlhf train trunc", ["truncation.", "truncation="]),
        ("rlhf train trainer.dense=", ["trainer.dense=false", "trainer.dense=true"]),
        ("rlhf train +reward@rewards.mine=ju", ["+reward@rewards.mine=judge", "+reward@rewards.mine=judge_ranking"]),
        ("rlhf train +exp=quickstart rewards.b", ["rewards.brevity."]),
        ("rlhf train +exp=quickstart,toy_ppo rewards.b", ["rewards.brevity."]),
        ("rlhf train +exp=toy_calculator tools.", ["tools.add."]),
        ("rlhf train +exp=toy_calculator tools.add.on", ["tools.add.on_error="]),
        ("rlhf train data.eval.a", ["data.eval.args."]),
        ("rlhf train nonsense rewards.x=[ +exp=quickstart 'seed=0,1' rewards.b", ["rewards.brevity."]),
        ("rlhf train +exp=quickstart rewards.brevity.gate.by=c", ["rewards.brevity.gate.by=correct"]),
        ("rlhf train -m +exp=quickstart --watch brev", ["brevity"]),
        ("rlhf train trainer.args.num_it", ["trainer.args.num_iterations="]),
        ("rlhf train trainer=ppo trainer.args.gae", ["trainer.args.gae_lambda="]),
        ("rlhf train trainer=sft trainer.args.num_generations", []),
        ("rlhf train trainer.args.seed", []),  # set by `seed`
        ("rlhf train trainer.args.loss_type=dr", ["trainer.args.loss_type=dr_grpo"]),
        ("rlhf train trainer.args.disable_dropout=", [
            "trainer.args.disable_dropout=false", "trainer.args.disable_dropout=true"]),
        ("rlhf train -m trainer=grpo,rl", ["trainer=grpo,rloo"]),
        ("rlhf train -m trainer=rloo,rl", []),
        ("rlhf completion z", ["zsh"]),
        ("rlhf schema rew", ["reward"]),
        ("rlhf help what", ["whatif"]),
        ("rlhf resume --fa", ["--failed"]),
        ("rlhf list rew", ["reward"]),
        ("rlhf list reward jud", ["judge", "judge_ranking"]),
        ("rlhf list reward judge ", []),
        ("rlhf schema reward rew", []),
        ("rlhf schema --out x.json rew", ["reward"]),
        ("rlhf completion zsh ", []),
        ("rlhf nonsense ", []),
    ],
)  # fmt: skip
def test_candidates(line: str, expected: list[str]) -> None:
    assert offered(line) == expected


def test_every_key_of_a_reward_and_every_flag_are_offered() -> None:
    found = offered("rlhf train +exp=quickstart rewards.brevity.")
    assert {word.removeprefix("rewards.brevity.").rstrip("=.") for word in found} == set(Reward.model_fields)
    for verb in VERBS:
        assert set(offered(f"rlhf {verb} -")) == {*usage_of(verb).flags, "--help"}


@pytest.fixture
def runs(place: Path) -> None:
    """Make three runs, and a reward file that must not be imported."""
    for name in ("quickstart/one", "quickstart/two", "toy/weight=0.1,seed=2"):
        folder = place / "runs" / name
        folder.mkdir(parents=True)
        (folder / "config.yaml").write_text("rewards: {polite: {fn: ./rewards.py:polite}}\n")
        (folder / "metrics.jsonl").write_text(
            '{"step": 1, "time_s": 1, "rewards/polite/mean": 0.5}\n{"step": 2, "time_s": 2, "loss": 0.1}\n{"st'
        )
    stopped = place / "runs" / "toy" / "weight=0.1,seed=2" / "metrics.jsonl"
    stopped.write_text("")
    (place / "rewards.py").write_text("raise SystemExit\ndef polite(completions): ...\ndef _own(): ...\n")


@pytest.mark.usefixtures("runs")
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("rlhf compare ru", ["run:", "runs/"]),
        ("rlhf init ru", ["runs/"]),
        ("rlhf resume ru", ["run.", "runs/"]),
        ("rlhf export ru", ["run:", "runs/"]),
        ("rlhf export run:toy ru", []),
        ("rlhf why runs/", ["runs/quickstart/", "runs/toy/"]),
        ("rlhf resume runs/quickstart/o", ["runs/quickstart/one"]),
        ("rlhf why runs/toy/weight=0", ["runs/toy/weight=0.1,seed=2"]),
        ("rlhf why run:quickstart/", ["run:quickstart/one", "run:quickstart/two"]),
        ("rlhf whatif runs/quickstart/one rewards.", ["rewards.polite."]),
        ("rlhf whatif run:quickstart/one rewards.", ["rewards.polite."]),
        ("rlhf reproduce runs/toy --against runs/q", ["runs/quickstart/"]),
        ("rlhf compare runs --on pol", ["polite"]),
        ("rlhf compare runs --on -lo", ["-loss"]),
        ("rlhf compare runs --metrics polite,lo", ["polite,loss"]),  # of the newest run that logged something
        ("rlhf compare runs --metrics to", []),  # which has no total
        ("rlhf train rewards.x.fn=", ["rewards.x.fn=./rewards.py:polite"]),
        ("rlhf train rewards.x.fn=./rewards.py:", ["rewards.x.fn=./rewards.py:polite"]),
        ("rlhf train rewards.", []),  # not the file rewards.py
        ("rlhf train data.path=r", ["data.path=rewards.py", "data.path=run:", "data.path=runs/"]),
        ("rlhf report runs --out ru", ["runs/"]),
    ],
)
def test_runs_metrics_files_and_functions_of_files(line: str, expected: list[str]) -> None:
    assert offered(line) == expected


@pytest.mark.parametrize(
    ("lines", "found", "heavy"),
    [
        (
            ["rlhf train +exp=qu", "rlhf train data.over", "rlhf compare run:qu"],
            ["quickstart", "data.overlong_prompts=", "quickstart"],
            ("torch", "trl", "hydra"),
        ),
        (
            ["rlhf train +exp=quickstart rewards.bre", "rlhf train trainer=dpo trainer.args.label_smoothing_"],
            ["rewards.brevity.", "trainer.args.label_smoothing_factor="],
            ("torch", "trl", "transformers", "rich"),
        ),
    ],
    ids=["without an experiment", "composed"],
)
def test_tab_imports_no_slow_library(lines: list[str], found: list[str], heavy: tuple[str, ...], runs: None) -> None:
    """Only what follows the last of bash's breaks is printed, as `run:` is there already."""
    program = (
        "import sys\nfrom rlhf_cli.cli import main\n"
        f"for line in {lines!r}: main(['completion', 'words', line, {BREAKS!r}])\n"
        f"print('HEAVY', [name for name in {heavy!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [*found, "HEAVY []"]
