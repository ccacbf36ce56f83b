"""From the words in a configuration to a reward function, which is called with what its signature has."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest

from rlhf_cli.errors import RewardError
from rlhf_cli.rewards.stack.reward_functions import required_columns, resolve, source_file
from rlhf_cli.rewards.stack.reward_stack import runs_elsewhere
from rlhf_cli.tables.trl_values import REWARD_ARGUMENTS

Write = Callable[[str, str], Path]
WHERE = "rewards.mine.fn (conf/exp/mine.yaml:3)"

MINE = """
def plain(completions, **kwargs):
    return [len(text) for text in completions]

def with_arguments(completions, answer, *, bonus, malus=0):
    return [bonus - malus] * len(completions)

constant = 3
"""


@pytest.fixture(autouse=True)
def mine(write: Write) -> Path:
    write("signatures.py", SHAPES)
    return write("my_rewards.py", MINE)


def refusal(fn: str, **args: object) -> RewardError:
    with pytest.raises(RewardError) as caught:
        resolve(fn, args, where=WHERE)
    return caught.value


class TestFound:
    @pytest.mark.parametrize("fn", ["./my_rewards.py:plain", "my_rewards.py:plain", "my_rewards:plain"])
    def test_a_function_of_a_file(self, fn: str) -> None:
        reward = resolve(fn, {}, where=WHERE)
        assert (reward(completions=["abc"], other_column=[1]), required_columns(reward)) == ([3], [])

    def test_two_files_of_one_name_are_two_modules(self, write: Write) -> None:
        write("other/my_rewards.py", "def plain(completions): return [-1]\n")
        assert resolve("./other/my_rewards.py:plain", {}, where=WHERE)(completions=["ab"]) == [-1]
        assert resolve("./my_rewards.py:plain", {}, where=WHERE)(completions=["ab"]) == [2]

    def test_a_column_with_the_name_of_an_argument_does_not_replace_it(self) -> None:
        reward = resolve("./my_rewards.py:with_arguments", {"bonus": 3}, where=WHERE)
        assert reward(["a"], answer=["x"], bonus=[7.0], malus=1) == [2]
        assert reward(["a"], answer=["x"], malus=1) == [2]
        assert required_columns(resolve("./my_rewards.py:with_arguments", {}, where=WHERE)) == ["answer", "bonus"]

    def test_a_module_of_this_folder_comes_first(
        self, write: Write, place: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As with `python -m`: a package with the same name may be installed."""
        write("site/same_name.py", "")
        write("same_name.py", "def plain(completions): return [0.0] * len(completions)\n")
        monkeypatch.setattr(sys, "path", [str(place / "site"), *(one for one in sys.path if one != str(place))])
        assert resolve("same_name:plain", {}, where=WHERE)(completions=["a"]) == [0.0]


class TestRefused:
    def test_no_such_file_or_function(self, place: Path) -> None:
        error = refusal("./gone.py:plain")
        assert (error.where, error.got, error.hint) == (WHERE, str(place / "gone.py"), None)
        assert refusal("./my_reward.py:plain").hint == "./my_rewards.py:plain"
        for name, hint in ("plian", "./my_rewards.py:plain"), ("constant", None):
            error = refusal(fn := f"./my_rewards.py:{name}")
            assert (error.where, error.got, error.hint) == (WHERE, fn, hint)
            assert error.expected == "one of plain, with_arguments"

    @pytest.mark.parametrize(
        ("fn", "hint"),
        [
            ("./my_rewards.py", "./my_rewards.py:FUNCTION"),
            ("./my_rewards.py::plain", "./my_rewards.py:plain"),
            ("./my_rewards:plain", "./my_rewards.py:plain"),
            ("my_rewards.plain", "my_rewards:plain"),
            ("./folder:plain", "./folder/__init__.py:plain"),
            ("./notes.ipynb:plain", None),
            ("./my_rewards.py:Scorer.no-name", "./my_rewards.py:FUNCTION"),
            ("wombat", None),
        ],
    )
    def test_a_name_of_another_form(self, write: Write, fn: str, hint: str | None) -> None:
        for name in ("folder/__init__.py", "notes.ipynb"):
            write(name, "")
        assert (refusal(fn).got, refusal(fn).hint) == (fn, hint)

    @pytest.mark.parametrize(
        ("source", "told"),
        [
            ("import sys\nsys.exit(3)\n", "SystemExit: 3 (broken.py:2)"),
            ("x = 1\ndef plain(:\n", "(broken.py:2)"),
            ("WORDS = open('gone.txt').read()\n", "'gone.txt' (broken.py:1)"),  # another file than this one is gone
            ("import deep\n", "ValueError: no key in the environment (deep.py:3)"),
            ("from .other import plain\n", "`from other import`"),
        ],
    )
    def test_a_file_that_cannot_be_imported_names_the_place(self, write: Write, source: str, told: str) -> None:
        write("deep.py", "\n\nraise ValueError('no key in the environment')\n")
        write("broken.py", source)
        error = refusal("./broken.py:plain")
        assert (error.what, error.where, error.hint) == ("./broken.py cannot be imported", WHERE, None)
        assert told in str(error.got)

    @pytest.mark.parametrize("module", ["no_such_package_at_all", "~nobody_here"])  # no home folder has this name
    def test_no_such_module(self, module: str) -> None:
        error = refusal(f"{module}:plain")
        assert error.got == f"ModuleNotFoundError: No module named '{module}'"  # and no line of ours


def test_the_file_that_is_hashed_is_that_of_a_python_module() -> None:
    here = Path(__file__).resolve()
    ours = Path(sys.modules["rlhf_cli"].__file__ or "").parent / "rewards/toy.py"
    named = {
        f"{here}:plain": here,
        "rlhf_cli.rewards.toy:digits_only": ours,
        "sys:exit": None,
        "no_such_module:f": None,
    }
    assert {fn: source_file(fn) for fn in named} == named


SHAPES = """
import functools

def mlx(prompts, completions, answer, types=None):  # mlx-lm-lora's shape
    return [float(right in said) for right, said in zip(answer, completions)]

def by_place(completions, /, answer):
    return mlx(None, completions, answer)

def by_name(completions, *, answer):
    return mlx(None, completions, answer)

class Scorer:
    def __call__(self, completions, answer):
        return mlx(None, completions, answer)

    def score(self, completions, answer):
        return self(completions, answer)

    @staticmethod
    def still(completions, answer):
        return mlx(None, completions, answer)

class Later:
    async def __call__(self, completions, answer):
        return mlx(None, completions, answer)

async def later(completions, answer):
    return mlx(None, completions, answer)

def make():
    return by_name

inst = Scorer()
later_inst = Later()
part = functools.partial(mlx, types=1)

def compute_score(data_source, solution_str, ground_truth, extra_info=None): ...  # verl
def batched(data_sources, solution_strs, ground_truths, extra_infos): ...  # verl
async def custom_rm(args, sample, **kwargs): ...  # slime
def batched_rm(args, samples): ...  # slime
def reward_func(queries, prompts, labels): ...  # OpenRLHF
def one(completion, answer, **kwargs): ...
def singular(prompt, completions): ...
def makes_foreign(): return reward_func
def from_samples(samples): return by_name
def ours(completions, response, **columns): ...  # `response` is a column of the data
def nothing(*args): return [1.0]
"""


BATCH: dict[str, Any] = {
    **{"prompts": ["2+3=", "1+1="], "completions": ["5", "3"], "completion_ids": [[1], [2]]},
    **{"answer": ["5", "2"], "level": [1, 2], "trainer_state": None, "log_metric": print, "log_extra": print},
}
CALLED = ["mlx", "by_place", "by_name", "Scorer", "inst", "inst.score", "Scorer.still", "make", "part"]


@pytest.mark.parametrize("name", [*CALLED, "later", "Later", "later_inst"])
def test_is_called_with_what_it_takes(name: str) -> None:
    reward = resolve(f"./signatures.py:{name}", {}, where="x")
    assert required_columns(reward) == ["answer"]
    returned = reward(**BATCH)
    is_async = "later" in name.lower()
    assert runs_elsewhere(reward) is is_async
    if is_async:

        async def awaited() -> object:
            return await cast(Awaitable[object], returned)

        returned = asyncio.run(awaited())
    assert returned == [1.0, 0.0]


@pytest.mark.parametrize(
    ("name", "taken"),
    [
        *(("compute_score", "solution_str"), ("reward_func", "queries"), ("makes_foreign", "queries")),
        *(("one", "completion"), ("singular", "prompt")),
        *(("batched", "solution_strs"), ("custom_rm", "sample"), ("batched_rm", "samples")),
    ],
)
def test_an_argument_of_another_tool_is_refused(name: str, taken: str) -> None:
    with pytest.raises(RewardError) as caught:
        resolve(f"./signatures.py:{name}", {}, where="x")
    assert repr(taken) in caught.value.what
    assert (caught.value.where, caught.value.hint) == ("x", None)
    assert str(caught.value.advice).startswith("def score(completions")
    is_column = taken in ("prompt", "completion")  # TRL passes all others on
    assert (f"data.rename.NAME={taken}" in str(caught.value.got)) is is_column


def test_a_column_with_such_a_name_is_accepted_and_what_trl_supplies_is_none() -> None:
    namespace: dict[str, Any] = {}
    exec(f"def reward({', '.join(sorted(REWARD_ARGUMENTS))}, solution): ...", namespace)
    assert required_columns(namespace["reward"]) == ["solution"]
    with pytest.raises(RewardError, match="needs the argument 'samples'"):  # a factory
        resolve("./signatures.py:from_samples", {}, where="x")
    assert required_columns(resolve("./signatures.py:from_samples", {"samples": 3}, where="x")) == ["answer"]
    assert required_columns(resolve("./signatures.py:ours", {}, where="x")) == ["response"]


@pytest.mark.parametrize(
    ("fn", "told"),
    [
        ("./signatures.py:nothing", "completions"),
        ("./signatures.py:Scorer.score", "./signatures.py:scorer.score"),
        ("builtins:max", "no signature"),
    ],
)
def test_what_cannot_be_called_is_refused(fn: str, told: str) -> None:
    with pytest.raises(RewardError) as caught:
        resolve(fn, {}, where="x")
    assert told in str(caught.value)


@pytest.mark.parametrize("folder", ["", "rewards"])
def test_a_file_that_hides_a_package_of_training_is_named(folder: str, write: Write, place: Path) -> None:
    """Beside the reward file, or in the folder in which the command runs; a clone of TRL hides none."""
    write("rewards/mine.py", MINE)
    write("trl/__init__.py", "")
    assert resolve("./rewards/mine.py:plain", {}, where=WHERE)
    file = write(f"{folder}/datasets.py", "") if folder else write("datasets.py", "")
    error = refusal("./rewards/mine.py:plain")
    assert (error.where, error.hint) == (str(file), f"mv {file} {file.with_stem('my_datasets')}")
