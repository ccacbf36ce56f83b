"""The words behind a verb are parsed as its help describes them, and help fits the terminal."""

from __future__ import annotations

import importlib

import pytest

from rlhf_cli.cli.options import JSON, Usage, folded, read_options, usage_of
from rlhf_cli.cli.verbs import VERBS
from rlhf_cli.errors import ConfigError, Problems

HELP = """rlhf cook DISH     it cooks

Not a flag: --raw is mentioned in a text, and
  -- this is none either

--heat N           the heat
  -q, --quick      without salt
--with SPICE ...   any number of spices
--photo FILE.png   a picture
--json
"""


def cook(*words: str, text: str = HELP):
    return read_options(Usage("cook", text), words)


def test_flags_are_the_lines_that_begin_with_a_dash() -> None:
    flags = Usage("cook", HELP).flags
    assert set(flags) == {"--heat", "-q", "--quick", "--with", "--photo", "--json"}
    assert flags["-q"] is flags["--quick"]
    assert {name for name, flag in flags.items() if not flag.metavar} == {"-q", "--quick", "--json"}


def test_words_and_flags_in_any_order() -> None:
    options = cook("soup", "--heat", "3", "--with=pepper", "salt=1", "-q", "--with", "-thyme", "~x", "--heat=4")
    assert options.words == ["soup", "salt=1", "~x"]
    assert options.number("--heat") == 4, "the last value counts"
    assert options.texts("--with") == ["pepper", "-thyme"]
    assert options.on("--quick")
    assert options.on("-q")
    assert not options.as_json
    assert cook("-j4", text="-j, --jobs N   number").number("--jobs") == 4
    nothing = cook()
    assert (nothing.number("--heat"), nothing.text("--with"), nothing.path("--photo")) == (None, None, None)
    assert (nothing.texts("--with"), nothing.on("-q")) == ([], False)


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["--haet", "3"], "--heat"),
        (["--zzz"], "rlhf cook --help"),
        (["--heat"], "rlhf cook --help"),
        (["--heat", "--json"], "rlhf cook --help"),
        (["--quick=yes"], "rlhf cook --help"),
        (["--photo", "a.gif"], "--photo a.gif.png"),
        (["--photo", "my a"], "--photo 'my a.png'"),
    ],
)
def test_mistakes(words: list[str], hint: str) -> None:
    with pytest.raises(ConfigError) as raised:
        cook(*words)
    assert (raised.value.hint, raised.value.where) == (hint, "command line")


def test_all_mistakes_are_reported_together() -> None:
    with pytest.raises(Problems) as raised:
        cook("--haet", "--quick=yes", "--heat")
    assert len(raised.value.problems) == 3


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["--config-name", "first"], "+exp=first"),
        (["--config-name=first"], "+exp=first"),
        (["-c", "conf/exp/first.yaml"], "+exp=first"),
        (["--config", "+exp=first"], "+exp=first"),
        (["--exp"], "+exp=NAME"),
        (["--config-path=conf", "+exp=first"], "rlhf cook --help"),
        (["--learning_rate", "1e-5"], "trainer.args.learning_rate=1e-5"),
        (["--learning-rate=1e-5"], "trainer.args.learning_rate=1e-5"),
        (["--rewards.a.weight", "2"], "rewards.a.weight=2"),
        (["--rewards.a.{b}", "2"], "rlhf cook --help"),
        (["-lr", "1e-5"], "trainer.args.learning_rate=1e-5"),
        (["--bf16"], "launch.precision=bf16"),
        (["--output_dir=here"], "run.root, or run.name"),
        (["--bf16", "false"], "launch.precision=float32"),
        (["--load_in_4bit", "true"], "model.quantize=4bit"),
        (["--lora_target_modules", "q_proj", "v_proj"], "model.lora.target_modules='[q_proj,v_proj]'"),
        (["--eos_token", "<|im_end|>"], "trainer.args.eos_token='<|im_end|>'"),
    ],
)
def test_flags_of_other_tools(words: list[str], hint: str) -> None:
    with pytest.raises(ConfigError) as raised:
        cook(*words, text="rlhf cook +exp=NAME [overrides]\n")
    assert raised.value.hint == hint


@pytest.mark.parametrize("words", [["--load_in_4bit=False"], ["--use_vllm", "no"], ["--train_on_inputs", "false"]])
def test_flags_that_are_off_or_have_no_key_here(words: list[str]) -> None:
    with pytest.raises(ConfigError) as raised:
        cook(*words, text="rlhf cook +exp=NAME [overrides]\n")
    assert (raised.value.hint, bool(raised.value.advice)) == ("rlhf cook --help", True)


@pytest.mark.parametrize("verb", VERBS)
def test_help_is_the_docstring_of_the_verb_and_fits_the_terminal(verb: str) -> None:
    usage = usage_of(verb)
    assert usage.text == importlib.import_module(f"rlhf_cli.cli.verbs.{verb}").__doc__
    assert (JSON in usage.flags) == (verb != "completion")
    shown = folded(usage.text.strip(), 80)
    assert shown.split() == usage.text.split()
    assert all(len(line) <= 80 for line in shown.splitlines())
    assert set(map(str, Usage(verb, shown).flags.values())) == set(map(str, usage.flags.values()))


def test_folded_columns_by_hand() -> None:
    text = (
        "rlhf verb RUN     what it does, at a length that no narrow terminal has the room for\n\n"
        "A paragraph of two lines that stand\ntogether, and more behind them.\n\n"
        "  --flag VALUE   what it is, described in two\n                 lines of the source\n  --short        so"
    )
    assert folded(text, 50).splitlines() == [
        "rlhf verb RUN     what it does, at a length that",
        "                  no narrow terminal has the room",
        "                  for",
        "",
        "A paragraph of two lines that stand together, and",
        "more behind them.",
        "",
        "  --flag VALUE   what it is, described in two",
        "                 lines of the source",
        "  --short        so",
    ]
    assert folded(text, 120) == text
