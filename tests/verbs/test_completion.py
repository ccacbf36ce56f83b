"""Completion: what Tab offers behind a half-typed line, and that both shells' scripts are sound."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rlhf_cli.cli import main
from rlhf_cli.jobs.completion_words import candidates
from rlhf_cli.verbs import VERBS


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("rlhf tr", ["train"]),
        ("rlhf train +exp=qu", ["+exp=quickstart"]),
        ("rlhf train trainer=rl", ["trainer=rloo"]),
        ("rlhf check +exp=quickstart rewards.b", ["rewards.brevity."]),
        ("rlhf train +exp=quickstart rewards.brevity.w", ["rewards.brevity.weight="]),
        ("rlhf train trainer.args.num_it", ["trainer.args.num_iterations="]),
        ("rlhf train trainer.args.loss_type=dr", ["trainer.args.loss_type=dr_grpo"]),
        ("rlhf train trainer.args.use_vllm=", ["trainer.args.use_vllm=false", "trainer.args.use_vllm=true"]),
        ("rlhf train -m trainer=grpo,rl", ["trainer=grpo,rloo"]),
        ("rlhf train -m trainer=rloo,rl", []),
        ("rlhf train -m --w", ["--watch"]),
        ("rlhf train --w", []),
        ("rlhf resume --fa", ["--failed"]),
        ("rlhf compare --w", ["--wandb-view", "--weights", "--window"]),
        ("rlhf whatif --r", ["--recompute"]),
        ("rlhf train -m +exp=quickstart sw", ["sweep="]),
        ("rlhf train -m +exp=quickstart +sw", ["+sweep="]),
        ("rlhf completion z", ["zsh"]),
        ("rlhf resume ru", []),  # the shell's own file names
    ],
)
def test_candidates(line: str, offered: list[str]) -> None:
    assert candidates(line, VERBS) == offered


def test_what_is_set_elsewhere_is_not_offered() -> None:
    assert candidates("rlhf train trainer.args.seed", VERBS) == []
    assert "trainer.args.num_generations=" in candidates("rlhf train trainer.args.num_", VERBS)


def test_a_wrong_word_earlier_on_the_line_does_not_silence_it() -> None:
    assert candidates("rlhf train nonsense trainer=rl", VERBS) == ["trainer=rloo"]


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_the_script_parses(shell: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["completion", shell]) == 0
    script = tmp_path / "rlhf-completion"
    script.write_text(capsys.readouterr().out)
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed here")
    subprocess.run([shell, "-n", str(script)], check=True)


@pytest.mark.parametrize(
    ("line", "words", "replies"),
    [
        ("rlhf train +exp=qu", "rlhf train +exp = qu", ["quickstart"]),
        ("rlhf list tr", "rlhf list tr", ["track", "trainer", "truncation"]),
        ("rlhf train trainer.args.use_vllm=", "rlhf train trainer.args.use_vllm =", ["false", "true"]),
        ("rlhf why s/weight=0,", "rlhf why s/weight = 0,", ["0,seed=1/"]),
        ("rlhf why s", "rlhf why s", []),  # bash's own completion of files
    ],
)
def test_bash_inserts_what_is_behind_a_sign_that_breaks_words(
    line: str, words: str, replies: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """bash splits words at `=`: what it inserts is the part behind it."""
    main(["completion", "bash"])
    (tmp_path / "s" / "weight=0,seed=1").mkdir(parents=True)
    script = tmp_path / "script"
    bin_dir = Path(sys.executable).parent
    lines = [
        f"export PATH={bin_dir}:$PATH",
        capsys.readouterr().out,
        f"COMP_LINE='{line}' COMP_POINT={len(line)} COMP_CWORD={len(words.split()) - 1}",
        f"COMP_WORDS=({words})",
        "_rlhf 2>/dev/null",
        'for word in "${COMPREPLY[@]}"; do echo "[$word]"; done',
    ]
    script.write_text("\n".join(lines))
    done = subprocess.run(["bash", str(script)], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.stdout.split() == [f"[{reply}]" for reply in replies]


def test_a_critic_brings_arguments_and_takes_one() -> None:
    assert candidates("rlhf train trainer=ppo trainer.args.gae", VERBS) == ["trainer.args.gae_lambda="]
    assert candidates("rlhf train trainer=ppo trainer.args.beta", VERBS) == []
    assert candidates("rlhf train trainer.args.gae", VERBS) == []
    assert "trainer.args.beta=" in candidates("rlhf train trainer.args.beta", VERBS)
