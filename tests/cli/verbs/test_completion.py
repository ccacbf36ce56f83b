"""Completion: what Tab offers behind a half-typed line, in a real bash, without a slow library."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlhf_cli.cli.verbs import VERBS
from rlhf_cli.cli.verbs.completion import candidates
from rlhf_cli.config.schema.reward_sections import Reward
from rlhf_cli.jobs.usage import usage_of

pytestmark = pytest.mark.usefixtures("place")
BREAKS = " \t\n\"'@><=;|&(:"
"""What bash breaks words at if nobody said otherwise."""


def offered(line: str) -> list[str]:
    return candidates(line.split(" "))


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("rlhf tr", ["train"]),
        ("rlhf --v", ["--version"]),
        ("rlhf train +exp=qu", ["+exp=quickstart"]),
        ("rlhf train trainer=rl", ["trainer=rloo"]),
        ("rlhf train +exp=quickstart rewards.brevity.w", ["rewards.brevity.weight=", "rewards.brevity.with_eos="]),
        ("rlhf train rewards.brevity.normalize=b", ["rewards.brevity.normalize=batch"]),
        ("rlhf train launch.slurm.p", ["launch.slurm.partition="]),
        ("rlhf train trunc", ["truncation.", "truncation="]),
        ("rlhf train trainer.dense=", ["trainer.dense=false", "trainer.dense=true"]),
        ("rlhf train +reward@rewards.mine=ju", ["+reward@rewards.mine=judge"]),
        ("rlhf train --watch ", []),  # a metric: nobody knows which there will be
        ("rlhf resume --fa", ["--failed"]),
        ("rlhf list rew", ["reward"]),
        ("rlhf list reward jud", ["judge"]),
        ("rlhf nonsense ", []),
    ],
)
def test_candidates(line: str, expected: list[str]) -> None:
    assert offered(line) == expected


def test_every_key_of_a_reward_and_every_flag_are_offered() -> None:
    found = offered("rlhf train +exp=quickstart rewards.brevity.")
    assert {word.removeprefix("rewards.brevity.").rstrip("=.") for word in found} == set(Reward.model_fields)
    for verb in VERBS:
        assert set(offered(f"rlhf {verb} -")) == {*usage_of(verb).flags, "--help"}


def test_tab_waits_for_no_library() -> None:
    lines = ["rlhf train +exp=qu", "rlhf train data.over", "rlhf compare run:"]
    program = (
        "import sys\nfrom rlhf_cli.cli import main\n"
        f"for line in {lines!r}: main(['completion', 'words', line, {BREAKS!r}])\n"
        "print('HEAVY', [name for name in ('torch', 'trl', 'hydra') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["quickstart", "data.overlong_prompts=", "HEAVY []"]


def in_shell(*command: str) -> str:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


def test_bash_is_given_what_follows_its_last_break(place: Path) -> None:
    (place / "runs" / "quickstart" / "one").mkdir(parents=True)
    (place / "runs" / "quickstart" / "one" / "config.yaml").write_text("seed: 0\n")
    script = 'eval "$(rlhf completion bash)"; COMP_WORDS=(rlhf); for COMP_LINE in "$@"; do COMP_POINT=${#COMP_LINE};'
    script += ' _rlhf 2>/dev/null; echo "${COMPREPLY[@]}"; done; complete -p rlhf'
    lines = ["rlhf train +exp=qu", "rlhf compare run:qu", "rlhf resume --fai"]
    *found, registered = in_shell("bash", "-c", script, "bash", *lines).splitlines()
    assert found == ["quickstart", "quickstart", "--failed"]
    assert registered == "complete -o default -F _rlhf rlhf"
