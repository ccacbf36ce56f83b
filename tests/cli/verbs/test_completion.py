"""Completion: what Tab offers behind a half-typed line, in a real bash and a real zsh, without a slow library."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlhf_cli.cli import main
from rlhf_cli.cli.verbs import VERBS
from rlhf_cli.cli.verbs.completion import candidates
from rlhf_cli.config.schema.reward_sections import Reward
from rlhf_cli.jobs.usage import usage_of

_BEGIN, _END = "<<LINE ", " LINE>>"
_BASH = rf"""
PS1='$ '
bind 'set bell-style none'
bind 'set completion-query-items 0'
bind 'set page-completions off'
show_line() {{ printf '\n%s%s%s\n' '{_BEGIN}' "$READLINE_LINE" '{_END}'; }}
bind -x '"\C-x\C-e": show_line'
"""
_ZSH = rf"""
PS1='$ '
unsetopt beep
LISTMAX=1000
show_line() {{ print; print -r -- '{_BEGIN}'"$BUFFER"'{_END}'; zle redisplay; }}
zle -N show_line
bindkey -e
bindkey '^X^E' show_line
"""
_CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]|\r|\x07|\x08")


class TypedShell:
    """An interactive bash or zsh in a folder. `line(text)` is what the line has become after a Tab behind `text`."""

    def __init__(self, shell: str, folder: Path, *, complete: bool = True) -> None:
        start = folder / f".{shell}_start"
        script = f'eval "$(rlhf completion {shell})"\n' if complete else ""
        start.write_text((_BASH if shell == "bash" else _ZSH) + script)
        self.shown = ""
        pid, self._terminal = pty.fork()
        if pid == 0:
            os.chdir(folder)
            os.environ |= {"TERM": "dumb" if shell == "zsh" else "xterm", "HOME": str(folder)}
            os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
            flags = ["--noprofile", "--norc"] if shell == "bash" else ["-f"]
            os.execvp(shell, [shell, *flags, "-i"])
        self._pid = pid
        self._write(f"source {start.name}; echo rea''dy\n")
        self._read_until("ready")

    def line(self, text: str, *, tabs: int = 1) -> str:
        """Return what stands on the line when Tab was pressed behind `text`; the line is empty again afterwards."""
        self._write(text + "\t" * tabs)
        self._write("\x18\x05")
        shown = self._read_until(_END)
        self.shown = _CODES.sub("", shown.rpartition(_BEGIN)[0])
        self._write("\x15")
        return _CODES.sub("", shown.rpartition(_BEGIN)[2].partition(_END)[0])

    def close(self) -> None:
        """End the shell."""
        self._write("\x15\x04")
        self._write("exit\n")
        os.close(self._terminal)
        os.waitpid(self._pid, 0)

    def _write(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def _read_until(self, sign: str, *, limit_s: float = 60.0) -> str:
        read, began = "", time.monotonic()
        while sign not in read:
            assert time.monotonic() - began < limit_s, f"the shell never said {sign!r}:\n{read}"
            if select.select([self._terminal], [], [], 0.5)[0]:
                read += os.read(self._terminal, 65536).decode(errors="replace")
        return read


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
        ("rlhf check +exp=quickstart rewards.b", ["rewards.brevity."]),
        ("rlhf train +exp=quickstart rewards.brevity.w", ["rewards.brevity.weight=", "rewards.brevity.with_eos="]),
        ("rlhf train +exp=quickstart rewards.brevity.gate.by=c", ["rewards.brevity.gate.by=correct"]),
        ("rlhf train +exp=quickstart rewards.brevity.args.", [f"rewards.brevity.args.{name}=" for name in (
            "full", "unit", "zero")]),
        ("rlhf train +exp=quickstart rewards.brevity.normalize=b", ["rewards.brevity.normalize=batch"]),
        ("rlhf train launch.slurm.p", ["launch.slurm.partition="]),
        ("rlhf train trainer.cl", ["trainer.class="]),
        ("rlhf train trunc", ["truncation.", "truncation="]),
        ("rlhf train trainer.dense=", ["trainer.dense=false", "trainer.dense=true"]),
        ("rlhf train trainer.args.loss_type=dr", ["trainer.args.loss_type=dr_grpo"]),
        ("rlhf train trainer.args.use_vllm=", ["trainer.args.use_vllm=false", "trainer.args.use_vllm=true"]),
        ("rlhf train +reward@rewards.mine=ju", ["+reward@rewards.mine=judge"]),
        ("rlhf train --watch ", []),  # a metric: nobody knows which there will be
        ("rlhf resume --fa", ["--failed"]),
        ("rlhf completion z", ["zsh"]),
        ("rlhf list rew", ["reward"]),
        ("rlhf list reward jud", ["judge"]),
        ("rlhf nonsense ", []),
        # What another key sets is not offered; a critic brings arguments and takes one; a wrong word silences nothing.
        ("rlhf train trainer.args.seed", []),
        ("rlhf train trainer=ppo trainer.args.gae", ["trainer.args.gae_lambda="]),
        ("rlhf train trainer=ppo trainer.args.beta", []),
        ("rlhf train trainer.args.beta", ["trainer.args.beta="]),
        ("rlhf train nonsense rewards.x=[ trainer=rl", ["trainer=rloo"]),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("place")
def test_candidates(line: str, expected: list[str]) -> None:
    assert offered(line) == expected


@pytest.mark.usefixtures("place")
def test_every_key_of_a_reward_and_every_flag_are_offered() -> None:
    found = offered("rlhf train +exp=quickstart rewards.brevity.")
    assert {word.removeprefix("rewards.brevity.").rstrip("=.") for word in found} == set(Reward.model_fields)
    for verb in VERBS:
        assert set(offered(f"rlhf {verb} -")) == {*usage_of(verb).flags, "--help"}


@pytest.mark.usefixtures("place")
def test_tab_waits_for_no_library() -> None:
    lines = ["rlhf train +exp=qu", "rlhf train data.over", "rlhf compare run:"]
    program = (
        "import sys\nfrom rlhf_cli.cli import main\n"
        f"for line in {lines!r}: main(['completion', 'words', line, {BREAKS!r}])\n"
        "print('HEAVY', [name for name in ('torch', 'trl', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["quickstart", "data.overlong_prompts=", "HEAVY []"]


def test_another_shell_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "fish"]) == 2
    assert "bash or zsh" in capsys.readouterr().err


LINES = {
    "rlhf tr": "rlhf train ",
    "rlhf train +exp=qu": "rlhf train +exp=quickstart ",
    "rlhf train +exp=quickstart rewards.brevity.gat": "rlhf train +exp=quickstart rewards.brevity.gate.",
    "rlhf compare run:qu": "rlhf compare run:quickstart ",
    "rlhf compare runs/quickst": "rlhf compare runs/quickstart/",
    "true; rlhf resume --fai": "true; rlhf resume --failed ",
    "rlhf train trainer=nonsen": "rlhf train trainer=nonsen",
}
"""A line, and what it becomes by one Tab: unfinished words without a blank behind them, whole ones with one."""


@pytest.fixture(scope="module", params=["bash", "zsh"])
def shell(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TypedShell]:
    if shutil.which(request.param) is None:
        pytest.skip(f"{request.param} is not installed here")
    run = tmp_path_factory.mktemp("place") / "runs" / "quickstart" / "one"
    run.mkdir(parents=True)
    (run / "config.yaml").write_text("seed: 0\n")
    typed = TypedShell(request.param, run.parents[2])
    yield typed
    typed.close()


def test_one_tab(shell: TypedShell) -> None:
    assert {line: shell.line(line) for line in LINES} == LINES


def test_two_tabs_show_what_there_is(shell: TypedShell) -> None:
    shell.line("rlhf train truncation.policy=", tabs=2)
    shown = shell.shown.replace("truncation.policy=", " ").split()
    assert {"bootstrap", "eos_penalty", "exclude", "none", "soft_overlong"} <= set(shown)
    shell.line("rlhf ", tabs=2)
    assert {"init", "train", "check", "why"} <= set(shell.shown.split())


def test_negative_control_without_the_script_nothing_is_known(tmp_path: Path) -> None:
    bare = TypedShell("bash", tmp_path, complete=False)
    try:
        assert bare.line("rlhf train +exp=qu") == "rlhf train +exp=qu"
    finally:
        bare.close()
