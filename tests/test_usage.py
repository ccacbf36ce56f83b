"""What may be typed behind a verb is what its help says."""

from __future__ import annotations

import importlib

import pytest

from rlhf_cli.cli.verbs import VERBS
from rlhf_cli.errors import ConfigError
from rlhf_cli.jobs.usage import JSON, read_options, usage_of

HELP = """rlhf cook DISH     it cooks

Not a flag: --raw is spoken of in a text, and
  -- this is none either

--heat N           so hot
  -q, --quick      without salt
--with SPICE ...   as many as one likes
--photo FILE.png   a picture
--json
"""


def cook(*words: str):
    return read_options(HELP, words, verb="cook")


def test_flags_are_the_lines_that_begin_with_a_dash() -> None:
    flags = cook().usage.flags
    assert set(flags) == {"--heat", "-q", "--quick", "--with", "--photo", "--json"}
    assert flags["-q"] is flags["--quick"]
    assert {name for name, flag in flags.items() if flag.is_switch} == {"-q", "--quick", "--json"}


def test_words_and_flags_in_any_order() -> None:
    options = cook("soup", "--heat", "3", "--with=pepper", "salt=1", "-q", "--with", "-thyme", "~x")
    assert options.words == ["soup", "salt=1", "~x"]
    assert options.number("--heat") == 3
    assert options.texts("--with") == ["pepper", "-thyme"]
    assert options.on("--quick")
    assert options.on("-q")
    assert not options.as_json


def test_what_was_not_typed_the_last_of_several_and_a_value_in_the_same_word() -> None:
    options = cook()
    assert (options.number("--heat"), options.text("--with"), options.path("--photo")) == (None, None, None)
    assert (options.texts("--with"), options.on("-q")) == ([], False)
    assert cook("--heat", "3", "--heat=4").number("--heat") == 4
    assert read_options("-j, --jobs N   so many", ["-j4", "x"], verb="cook").number("--jobs") == 4


@pytest.mark.parametrize(
    ("words", "what", "hint"),
    [
        (["--haet", "3"], "rlhf cook has no option --haet", "--heat"),
        (["--zzz"], "rlhf cook has no option --zzz", "rlhf cook --help"),
        (["--heat"], "--heat wants a value", "rlhf cook --help"),
        (["--heat", "--json"], "--heat wants a value", "rlhf cook --help"),
        (["--quick=yes"], "--quick is a switch", "rlhf cook --help"),
        (["--photo", "a.gif"], "--photo is a .png file", "--photo a.gif.png"),
    ],
)
def test_refusals(words: list[str], what: str, hint: str) -> None:
    with pytest.raises(ConfigError) as raised:
        cook(*words)
    assert (raised.value.what, raised.value.hint, raised.value.where) == (what, hint, "command line")


@pytest.mark.parametrize("verb", VERBS)
def test_what_help_prints_is_the_docstring_of_the_verb_and_names_json(verb: str) -> None:
    assert usage_of(verb).text == importlib.import_module(f"rlhf_cli.cli.verbs.{verb}").__doc__
    assert (JSON in usage_of(verb).flags) == (verb != "completion")


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["--config-name", "first"], "+exp=first"),
        (["--config-name=first"], "+exp=first"),
        (["-c", "conf/exp/first.yaml"], "+exp=first"),
        (["--exp", "first"], "+exp=first"),
        (["--config", "+exp=first"], "+exp=first"),
        (["--exp"], "+exp=NAME"),
    ],
)
def test_the_experiment_is_chosen_by_no_flag(words: list[str], hint: str) -> None:
    with pytest.raises(ConfigError, match="has no option") as raised:
        read_options("rlhf cook +exp=NAME [overrides]\n", words, verb="cook")
    assert raised.value.hint == hint
    assert "+exp=NAME" in str(raised.value.expected)


def test_the_folder_of_experiments_is_not_chosen() -> None:
    with pytest.raises(ConfigError) as raised:
        read_options("rlhf cook +exp=NAME [overrides]\n", ["--config-path=conf", "+exp=first"], verb="cook")
    assert raised.value.in_words is not None
