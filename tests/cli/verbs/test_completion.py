"""Completion: what Tab offers behind a half-typed line, without a library that takes its time."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rlhf_cli.cli import main
from rlhf_cli.cli.completion import candidates, for_bash, typed_line
from rlhf_cli.cli.verbs import VERBS
from rlhf_cli.config.schema.reward_sections import Reward
from rlhf_cli.jobs.usage import usage_of

BREAKS = " \t\n\"'@><=;|&(:"
"""What bash breaks words at if nobody said otherwise."""


def offered(line: str) -> list[str]:
    return candidates(typed_line(line).words, VERBS)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("rlhf tr", ["train"]),
        ("rlhf --v", ["--version"]),
        ("rlhf train +exp=qu", ["+exp=quickstart"]),
        ("rlhf train trainer=rl", ["trainer=rloo"]),
        ("rlhf check +exp=quickstart rewards.b", ["rewards.brevity."]),
        ("rlhf train +exp=quickstart rewards.brevity.w", ["rewards.brevity.weight=", "rewards.brevity.with_eos="]),
        ("rlhf train +exp=quickstart rewards.brevity.weight.", [f"rewards.brevity.weight.{name}=" for name in (
            "end", "fraction", "shape", "start", "steps")]),
        ("rlhf train +exp=quickstart rewards.brevity.gate.by=c", ["rewards.brevity.gate.by=correct"]),
        ("rlhf train +exp=quickstart rewards.brevity.args.", [f"rewards.brevity.args.{name}=" for name in (
            "full", "unit", "zero")]),
        ("rlhf train +exp=quickstart rewards.brevity.args.unit=w", ["rewards.brevity.args.unit=words"]),
        ("rlhf train +exp=quickstart rewards.brevity.normalize=b", ["rewards.brevity.normalize=batch"]),
        ("rlhf train launch.hang", ["launch.hang_timeout_s="]),
        ("rlhf train launch.slurm.p", ["launch.slurm.partition="]),
        ("rlhf train data.over", ["data.overlong_prompts="]),
        ("rlhf train trainer.cl", ["trainer.class="]),
        ("rlhf train critic.learning", ["critic.learning_rate="]),
        ("rlhf train trunc", ["truncation.", "truncation="]),
        ("rlhf train prim", ["primary."]),
        ("rlhf train truncation.policy=b", ["truncation.policy=bootstrap"]),
        ("rlhf train trainer.dense=", ["trainer.dense=false", "trainer.dense=true"]),
        ("rlhf train trainer.args.num_it", ["trainer.args.num_iterations="]),
        ("rlhf train trainer.args.loss_type=dr", ["trainer.args.loss_type=dr_grpo"]),
        ("rlhf train trainer.args.use_vllm=", ["trainer.args.use_vllm=false", "trainer.args.use_vllm=true"]),
        ("rlhf train -m trainer=grpo,rl", ["trainer=grpo,rloo"]),
        ("rlhf train -m trainer=rloo,rl", []),
        ("rlhf train +reward@rewards.mine=ju", ["+reward@rewards.mine=judge"]),
        ("rlhf train --w", ["--watch"]),
        ("rlhf train --watch ", []),  # a metric: nobody knows which there will be
        ("rlhf resume --fa", ["--failed"]),
        ("rlhf compare --w", ["--wandb-view", "--weights", "--window"]),
        ("rlhf whatif --r", ["--recompute"]),
        ("rlhf train -m +exp=quickstart sw", ["sweep.", "sweep="]),
        ("rlhf train -m +exp=quickstart +sweep=", ["+sweep=halving", "+sweep=weights"]),
        ("rlhf completion z", ["zsh"]),
        ("rlhf list rew", ["reward"]),
        ("rlhf list reward jud", ["judge"]),
        ("rlhf list trainer grpo learning", ["learning_rate"]),
        ("rlhf show +exp=quickstart --against toy_pp", ["toy_ppo"]),
        ("rlhf nonsense ", []),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("place")
def test_candidates(line: str, expected: list[str]) -> None:
    assert offered(line) == expected


@pytest.mark.usefixtures("place")
def test_every_key_of_a_reward_is_offered() -> None:
    """Of the schema's own list; the function of this reward takes arguments, so there is `args.`"""
    found = offered("rlhf train +exp=quickstart rewards.brevity.")
    assert {word.removeprefix("rewards.brevity.").rstrip("=.") for word in found} == set(Reward.model_fields)


@pytest.mark.parametrize("verb", list(VERBS))
def test_every_flag_of_every_verb_is_offered(verb: str) -> None:
    assert set(offered(f"rlhf {verb} -")) == {*usage_of(verb).flags, "--help"}


def test_what_is_set_elsewhere_is_not_offered() -> None:
    assert offered("rlhf train trainer.args.seed") == []
    assert "trainer.args.num_generations=" in offered("rlhf train trainer.args.num_")


def test_a_critic_brings_arguments_and_takes_one() -> None:
    assert offered("rlhf train trainer=ppo trainer.args.gae") == ["trainer.args.gae_lambda="]
    assert offered("rlhf train trainer=ppo trainer.args.beta") == []
    assert offered("rlhf train trainer.args.gae") == []
    assert offered("rlhf train trainer.args.beta") == ["trainer.args.beta="]


def test_a_wrong_word_earlier_on_the_line_does_not_silence_it() -> None:
    assert offered("rlhf train nonsense rewards.x=[ trainer=rl") == ["trainer=rloo"]


@pytest.fixture
def runs(write: Callable[[str, str], Path]) -> None:
    for name in ("quickstart/one", "quickstart/two", "toy/weight=0.1,seed=2"):
        write(f"runs/{name}/config.yaml", "seed: 0\n")
    write("rewards.py", "raise SystemExit\ndef polite(completions, *, least: int = 2, strict: bool = True): ...\n")
    write(".hidden.py", "")


@pytest.mark.usefixtures("runs")
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("rlhf compare ru", ["run:", "runs/"]),
        ("rlhf compare run:", ["run:quickstart", "run:toy"]),
        ("rlhf why run:quickstart/", ["run:quickstart/one", "run:quickstart/two"]),
        ("rlhf why runs/toy/w", ["runs/toy/weight=0.1,seed=2/"]),
        ("rlhf why runs/toy/weight=0", ["runs/toy/weight=0.1,seed=2/"]),
        ("rlhf compare ", ["rewards.py", "runs/"]),
        ("rlhf report runs --out ru", ["runs/"]),
        ("rlhf train model.path=ru", ["model.path=run:", "model.path=runs/"]),
        ("rlhf train rewards.x.fn=./re", ["rewards.x.fn=./rewards.py:"]),
        ("rlhf train rewards.x.fn=./rewards.py:", ["rewards.x.fn=./rewards.py:polite"]),
        ("rlhf train rewards.x.fn=./rewards.py:polite rewards.x.args.l", ["rewards.x.args.least="]),
        ("rlhf train rewards.x.fn=./rewards.py:polite rewards.x.args.strict=t", ["rewards.x.args.strict=true"]),
        ("rlhf list reward ./rewards.py:p", ["./rewards.py:polite"]),
        ("rlhf train data.path=./", ["data.path=./rewards.py", "data.path=./runs/"]),
    ],
)
def test_runs_files_and_functions_of_files(line: str, expected: list[str]) -> None:
    """The reward file ends the interpreter of whoever imports it."""
    assert offered(line) == expected


@pytest.mark.parametrize(
    ("line", "words", "raw"),
    [
        ("rlhf tr", ("rlhf", "tr"), "tr"),
        ("rlhf train ", ("rlhf", "train", ""), ""),
        ("rlhf train 'a b=", ("rlhf", "train", "a b="), "'a b="),
        ("rlhf why my\\ ru", ("rlhf", "why", "my ru"), "my\\ ru"),
        ('rlhf show "x" y', ("rlhf", "show", "x", "y"), "y"),
    ],
)
def test_a_line_as_a_shell_takes_it_apart(line: str, words: tuple[str, ...], raw: str) -> None:
    assert (typed_line(line).words, typed_line(line).raw) == (words, raw)


@pytest.mark.parametrize(
    ("line", "found", "inserted"),
    [
        ("rlhf train +exp=qu", "+exp=quickstart", "quickstart"),
        ("rlhf train +reward@rewards.x=ju", "+reward@rewards.x=judge", "judge"),
        ("rlhf why run:qu", "run:quickstart", "quickstart"),
        ("rlhf why my\\ r", "my run/", "my\\ run/"),
        ("rlhf train 'a=x", "a=xyz", "a=xyz"),
        ("rlhf train trainer=", "trainer=ppo", "ppo"),
    ],
)
def test_bash_is_given_the_part_behind_the_sign_that_breaks_words(line: str, found: str, inserted: str) -> None:
    assert for_bash([found], typed_line(line), BREAKS) == [inserted]


@pytest.mark.usefixtures("place")
def test_tab_waits_for_no_library() -> None:
    lines = ["rlhf train +exp=qu", "rlhf train data.over", "rlhf compare run:"]
    program = (
        "import sys\nfrom rlhf_cli.cli import main\n"
        f"for line in {lines!r}: main(['completion', 'words', line, {BREAKS!r}])\n"
        "print('HEAVY', [name for name in ('torch', 'trl', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "HEAVY []"


def test_another_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "fish"]) == 2
    assert "bash or zsh" in capsys.readouterr().err
