"""Tab completion: the candidates of a line, without slow imports; what a real bash and zsh show after Tab."""

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
        ("rlhf train trunc", ["truncation.", "truncation="]),
        ("rlhf train trainer.dense=", ["trainer.dense=false", "trainer.dense=true"]),
        ("rlhf train +reward@rewards.mine=ju", ["+reward@rewards.mine=judge", "+reward@rewards.mine=judge_ranking"]),
        ("rlhf train +exp=quickstart,toy_ppo rewards.b", ["rewards.brevity."]),
        ("rlhf train +exp=toy_calculator tools.", ["tools.add."]),
        ("rlhf train +exp=toy_calculator tools.add.on", ["tools.add.on_error="]),
        ("rlhf train data.eval.a", ["data.eval.args."]),
        ("rlhf train nonsense rewards.x=[ +exp=quickstart 'seed=0,1' rewards.b", ["rewards.brevity."]),
        ("rlhf train +exp=quickstart rewards.brevity.gate.by=c", ["rewards.brevity.gate.by=correct"]),
        ("rlhf train -m +exp=quickstart --watch brev", ["brevity"]),
        ("rlhf train trainer=ppo trainer.args.gae", ["trainer.args.gae_lambda="]),
        ("rlhf train trainer=sft trainer.args.num_generations", []),
        ("rlhf train trainer.args.seed", []),  # set by `seed`
        ("rlhf train +exp=quickstart rewards.brevity.args.f", ["rewards.brevity.args.full="]),
        ("rlhf train rewards.m.fn=rlhf_cli.rewards.length:length_ramp rewards.m.args.z", ["rewards.m.args.zero="]),
        ("rlhf train reward@rewards.tags=format_tags rewards.tags.args.mode=so", ["rewards.tags.args.mode=soft"]),
        ("rlhf train trainer.args.loss_type=dr", ["trainer.args.loss_type=dr_grpo"]),
        ("rlhf train trainer.args.disable_dropout=", [
            "trainer.args.disable_dropout=false", "trainer.args.disable_dropout=true"]),
        ("rlhf train -m trainer=grpo,rl", ["trainer=grpo,rloo"]),
        ("rlhf train -m trainer=rloo,rl", []),
        ("rlhf schema rew", ["reward"]),
        ("rlhf completion z", ["zsh"]),
        ("rlhf help what", ["whatif"]),
        ("rlhf resume --fa", ["--failed"]),
        ("rlhf list rew", ["reward"]),
        ("rlhf list reward jud", ["judge", "judge_ranking"]),
        ("rlhf list reward judge ", []),
        ("rlhf list trainer grpo top_en", ["top_entropy_quantile"]),
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
def runs(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make three runs and a sweep, and a reward file that must not be imported."""
    monkeypatch.setenv("HOME", str(place))
    for name in ("quickstart/one", "quickstart/two", "toy/weight=0.1,seed=2"):
        folder = place / "runs" / name
        folder.mkdir(parents=True)
        (folder / "config.yaml").write_text("rewards: {polite: {fn: ./rewards.py:polite}}\n")
        (folder / "metrics.jsonl").write_text(
            '{"step": 1, "time_s": 1, "rewards/polite/mean": 0.5}\n{"step": 2, "time_s": 2, "loss": 0.1}\n{"st'
        )
    (folder / "metrics.jsonl").write_text("")
    (place / "runs/toy/sweep").mkdir()
    (place / "runs/toy/sweep/sweep.json").write_text("{}")
    (place / "rewards.py").write_text("raise SystemExit\ndef polite(completions): ...\ndef _own(): ...\n")


@pytest.mark.usefixtures("runs")
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("rlhf compare ru", ["run:", "runs/"]),
        ("rlhf init ru", ["runs/"]),
        ("rlhf resume ru", ["run.", "runs/"]),
        ("rlhf export run:toy ru", []),
        ("rlhf why runs/", ["runs/quickstart/", "runs/toy/"]),
        ("rlhf resume runs/quickstart/o", ["runs/quickstart/one"]),
        ("rlhf why run:qu", ["run:quickstart", "run:quickstart/"]),
        ("rlhf why run:quickstart/", ["run:quickstart/one", "run:quickstart/two"]),
        ("rlhf why run:toy/", ["run:toy/sweep", "run:toy/weight=0.1,seed=2"]),
        ("rlhf compare ~/runs/quickstart/o", ["~/runs/quickstart/one"]),
        ("rlhf whatif run:quickstart/one rewards.", ["rewards.polite."]),
        ("rlhf generate run:quickstart/one --by po", ["polite"]),
        ("rlhf compare ~/runs --on pol", ["polite"]),
        ("rlhf compare run:quickstart/one --by rewards.polite.wei", ["rewards.polite.weight"]),
        ("rlhf reproduce runs/toy --against runs/q", ["runs/quickstart/"]),
        ("rlhf compare runs --on pol", ["polite"]),
        ("rlhf compare runs --on -lo", ["-loss"]),
        ("rlhf compare runs --metrics polite,lo", ["polite,loss"]),  # of the newest run that logged something
        ("rlhf compare runs --metrics to", []),  # which has no total
        ("rlhf train rewards.x.fn=", ["rewards.x.fn=./rewards.py:polite"]),
        ("rlhf train rewards.x.fn=./rewards.py:", ["rewards.x.fn=./rewards.py:polite"]),
        ("rlhf list reward ./", ["./rewards.py:polite"]),
        ("rlhf train rewards.", []),  # not the file rewards.py
        ("rlhf train data.path=r", ["data.path=rewards.py", "data.path=run:", "data.path=runs/"]),
        ("rlhf report runs --out ru", ["runs/"]),
    ],
)
def test_runs_metrics_files_and_functions_of_files(line: str, expected: list[str]) -> None:
    assert offered(line) == expected


@pytest.mark.parametrize(
    ("found", "heavy"),
    [
        (
            {"rlhf train +exp=qu": "quickstart", "rlhf train data.over": "data.overlong_prompts=",
             "rlhf compare run:quickstart/o": "quickstart/one"},
            ("torch", "trl", "hydra"),
        ),
        (
            {"rlhf train +exp=quickstart rewards.bre": "rewards.brevity.",
             "rlhf train trainer=dpo trainer.args.label_smoothing_": "trainer.args.label_smoothing_factor="},
            ("torch", "trl", "transformers", "rich"),
        ),
    ],
)  # fmt: skip
def test_tab_imports_no_slow_library(found: dict[str, str], heavy: tuple[str, ...], runs: None) -> None:
    """Only what follows the last of bash's breaks is printed, as `run:` is there already."""
    program = (
        "import sys\nfrom rlhf_cli.cli import main\n"
        f"for line in {[*found]!r}: main(['completion', 'words', line, {BREAKS!r}])\n"
        f"print('HEAVY', [name for name in {heavy!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [*found.values(), "HEAVY []"]


# A real shell at a terminal of its own.

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

    def line(self, text: str) -> str:
        """Return what stands on the line when Tab was pressed behind `text`; the line is empty again afterwards."""
        self._write(text + "\t\x18\x05")
        shown = self._read_until(_END)
        self._write("\x15")
        return _CODES.sub("", shown.rpartition(_BEGIN)[2].partition(_END)[0])

    def close(self) -> None:
        """End the shell."""
        self._write("\x15\x04exit\n")
        os.close(self._terminal)
        os.waitpid(self._pid, 0)

    def _write(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def _read_until(self, sign: str) -> str:
        read, end = "", time.monotonic() + 60
        while sign not in read:
            assert time.monotonic() < end, f"the shell never said {sign!r}:\n{read}"
            if select.select([self._terminal], [], [], 0.5)[0]:
                read += os.read(self._terminal, 65536).decode(errors="replace")
        return read


LINES = {
    "rlhf tr": "rlhf train ",
    "rlhf train +exp=qu": "rlhf train +exp=quickstart ",
    "rlhf train +exp=quickstart rewards.brev": "rlhf train +exp=quickstart rewards.brevity.",
    "rlhf train rewards.": "rlhf train rewards.",
    "rlhf compare runs/quickstart/w": "rlhf compare runs/quickstart/weight=0.1,seed=2 ",
    "rlhf eval runs/quickstart --data my": "rlhf eval runs/quickstart --data my\\ data.jsonl ",
    "rlhf eval runs/quickstart --data my\\ d": "rlhf eval runs/quickstart --data my\\ data.jsonl ",
    "rlhf compare runs --on -pol": "rlhf compare runs --on -polite ",
    "rlhf train rewards.x.fn=./rewards.py:pol": "rlhf train rewards.x.fn=./rewards.py:polite ",
    "true; rlhf resume --fai": "true; rlhf resume --failed ",
    "rlhf train trainer=nonsen": "rlhf train trainer=nonsen",
    'rlhf train "+exp=qui': 'rlhf train "+exp=quickstart" ',
    "rlhf train '+exp=quickstart' 'rewards.brev": "rlhf train '+exp=quickstart' 'rewards.brevity.",
    'rlhf eval runs/quickstart --data "my d': 'rlhf eval runs/quickstart --data "my data.jsonl" ',
    "rlhf train 'a=b c' +exp=qui": "rlhf train 'a=b c' +exp=quickstart ",
}
"""A line -> the line after one Tab, with a blank after a whole word."""


@pytest.fixture(scope="module", params=["bash", "zsh"])
def shell(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TypedShell]:
    if shutil.which(request.param) is None:
        pytest.skip(f"{request.param} is not installed here")
    place = tmp_path_factory.mktemp("place")
    run = place / "runs" / "quickstart" / "weight=0.1,seed=2"
    run.mkdir(parents=True)
    (run / "config.yaml").write_text("rewards: {polite: {fn: ./rewards.py:polite}}\n")
    (place / "rewards.py").write_text("def polite(completions): ...\n")
    (place / "my data.jsonl").write_text("{}\n")
    typed = TypedShell(request.param, place)
    yield typed
    typed.close()


@pytest.mark.whole
@pytest.mark.parametrize("line", LINES)
def test_one_tab(line: str, shell: TypedShell) -> None:
    assert shell.line(line) == LINES[line]


@pytest.mark.whole
def test_negative_control_without_the_script(tmp_path: Path) -> None:
    bare = TypedShell("bash", tmp_path, complete=False)
    try:
        assert bare.line("rlhf train +exp=qu") == "rlhf train +exp=qu"
    finally:
        bare.close()
