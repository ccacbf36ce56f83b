"""Tokens of rows, counted by a tokenizer made up here: a token a byte, and two more before a plain text."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlhf_cli.config.schema.trainer_sections import Trainer
from rlhf_cli.data.rows import RowTable
from rlhf_cli.errors import DataError, UserError
from rlhf_cli.models.tokenizer_files import read_tokenizer
from rlhf_cli.plan.batches import RowLengths
from rlhf_cli.plan.checks.data_checks import source_problems
from rlhf_cli.plan.checks.facts import DataFacts, Report
from rlhf_cli.plan.row_tokens import (
    RowCounter,
    asking_columns,
    characters_of,
    context_problems,
    counter_of,
    length_problems,
    longest_rows,
)
from rlhf_cli.plan.run_plan import Notice
from tests.support.model_copies import model_copy
from tests.support.planning import Write, subject_of

_A, _MOST = "trainer.args.", "max_completion_length"
TEMPLATE = (
    "[{% for m in messages %}{{ m.content if m.content is string else m.content[0].text + 'part' }}{% endfor %}"
    "{{ bos_token }}{{ 'TOOLS' if tools }}{{ '>>>>' if add_generation_prompt }}{{ 6 // divisor }}]"
)
TOKENIZER: Any = SimpleNamespace(
    chat_template=TEMPLATE,
    template_with=lambda tools: TEMPLATE,
    lengths=lambda texts, *, special_tokens: [len(text.encode()) + 2 * special_tokens for text in texts],
    special={"bos_token": "<s>"}.get,
)
ONE: dict[str, object] = {"divisor": 6}  # the template's last character is 1


def says(*contents: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": content} for content in contents]


def test_tokens_by_hand() -> None:
    """A conversation has 6 characters of the template, 10 with the prompt for an answer; a text that is learnt ends
    with one token.
    """
    columns = ("tools", "chat_template_kwargs")
    counter = RowCounter(TOKENIZER, ONE, columns)
    prompts: dict[int, dict[str, Any]] = {
        5: {"prompt": "abc"},
        2: {"prompt": None},
        14: {"prompt": says("abc", "d"), "tools": []},
        19: {"prompt": says("abcd"), "tools": [{"x": 1}]},
        17: {"prompt": says("abcd"), "chat_template_kwargs": {"divisor": 0.5}},  # 12.0 for 1: 3 more
        4: {"prompt": says("abcd"), "chat_template_kwargs": {"divisor": 0}},  # it fails: the contents are counted
    }
    assert counter.prompts(list(prompts.values())) == list(prompts)
    wholes: dict[int, dict[str, Any]] = {
        6: {"text": "abc"},
        8: {"prompt": "ab", "completion": "cde"},
        9: {"prompt": "ab", "chosen": "c", "rejected": "defg", "reference": "hi"},
        10: {"prompt": says("ab"), "completion": says("cd")},
        11: {"messages": says("abc", "de")},
        30: {"input_ids": [1] * 30},
        40: {"input_ids": [1] * 3, "chosen_ids": [1] * 40, "text": "abc"},
        0: {},
    }
    assert counter.wholes(list(wholes.values())) == list(wholes)
    # a text of 20 bytes has 28 tokens at most, so it is not counted where 28 do not matter
    for text, tokens in (("a" * 20, 22), (says("a" * 20), 30)):
        least = 27 if isinstance(text, str) else 37
        assert [counter.prompts([{"prompt": text}], least + more) for more in (0, 1)] == [[tokens], [0]]
    plain, parts = RowCounter(TOKENIZER, ONE), RowCounter(TOKENIZER, ONE, in_parts=True)
    assert plain.wholes([wholes[11] | {"tools": [1]}]) == [11]  # it reads no tools
    assert parts.wholes([wholes[11]]) == [11 + 2 * 4]
    # ORPO and CPO add <s> and the end unless they are there, and no special tokens of the tokenizer
    both_ends = RowCounter(TOKENIZER, ONE, columns, adds_ends=True)
    assert both_ends.wholes([wholes[6], {"text": "<s>abc"}, wholes[11]]) == [3 + 2, 6 + 1, 11 + 2]
    assert both_ends.prompts([prompts[5], prompts[14]]) == [3 + 1, 14 + 1]


def test_without_a_template_the_contents_are_counted(tmp_path: Path) -> None:
    folder = model_copy(tmp_path / "model", without=("chat_template.jinja",))
    counter = RowCounter(read_tokenizer(folder, where="model"), {})
    assert counter.wholes([{"messages": says("1+1=")}]) == [4]


def test_characters_and_columns_of_a_row() -> None:
    rows: dict[int, dict[str, Any]] = {
        5: {"prompt": "ab", "completion": "cde"},
        6: {"prompt": "abcdef"},
        4: {"messages": says("abc", "d")},
        40: {"input_ids": [1] * 40, "text": "abc"},
        0: {},
    }
    assert [characters_of(row) for row in rows.values()] == list(rows)
    table = RowTable([{"prompt": "a", "x": 1, "tools": [2]}, {"prompt": "b", "x": 3}], ["prompt", "x", "tools"])
    assert asking_columns(table) == [{"prompt": "a", "tools": [2]}, {"prompt": "b", "tools": None}]


def subject(trl: str, **args: object) -> Any:
    trainer = Trainer(name="it", trl=f"{trl}Trainer", args=args)
    experiment = SimpleNamespace(trainer=trainer, interacts=False, data=SimpleNamespace(fraction=None))
    return SimpleNamespace(experiment=experiment, reads_images=False, tokenizer=TOKENIZER)


def test_what_counts_the_rows_of_an_experiment() -> None:
    """ORPO adds a token to a row, beside its end; it reads `prompt` and the template's variables (TRL 1.16)."""
    orpo = subject("ORPO", chat_template_kwargs=ONE)
    orpo.reads_images = True
    assert counter_of(orpo) == RowCounter(TOKENIZER, ONE, orpo.experiment.trainer.row.along, 1, in_parts=True)
    for unread in (None, SimpleNamespace(lengths=lambda texts, *, special_tokens: None)):
        orpo.tokenizer = unread
        assert counter_of(orpo) is None


def data_of(*rows: dict[str, object], num_selected: int | None = None) -> DataFacts:
    table = RowTable(rows, list(rows[0]))
    read: Any = SimpleNamespace(
        source=SimpleNamespace(name="data.mix.a"), rows=table, num_selected=num_selected or len(rows)
    )
    return DataFacts((read, SimpleNamespace(source=None, rows=None, num_selected=None)))  # type: ignore[arg-type]


def test_the_longest_of_the_64_rows_with_the_most_characters() -> None:
    """The 64th has 5 characters of 2 bytes; that after it, of 4 characters and 16 bytes, is not counted."""
    rows: list[dict[str, object]] = [{"prompt": text} for text in ["𝄞𝄞𝄞𝄞", "ééééé", *["abcdef"] * 63]]
    for most, tokens in ((None, 12), (7, 7), (20, 12)):
        found = longest_rows(subject("GRPO"), data_of(*rows), most)
        assert found == RowLengths(tokens, 0)
    bodies = [{"prompt": "ab", "body": row["prompt"]} for row in rows]
    sft = subject("SFT", dataset_text_field="body")
    assert longest_rows(sft, data_of(*bodies), None) == RowLengths(2, 10 + 2 + 1)
    assert longest_rows(sft, DataFacts(), None) is None
    sft.tokenizer = None
    assert longest_rows(sft, data_of(*bodies), None) is None


def test_columns_that_the_trainer_does_not_read_are_not_counted() -> None:
    """A plain text has 2 tokens more than bytes, one that is learnt 3; the messages have 50."""
    texts = {"prompt": "a", "completion": "b", "chosen": "cd", "rejected": "e", "label": True}
    row = {**texts, "messages": says("m" * 50), "text": "t" * 60, "chosen_ids": [1] * 70, "body": "o" * 9}
    for trl, args, columns, lengths in (
        ("SFT", {}, row, (3, 5)),
        ("KTO", {}, row, (3, 5)),
        ("DPO", {}, row, (3, 6)),
        ("Reward", {}, row, (3, 6)),
        ("Reward", {}, row | {"rejected_ids": [1]}, (2, 70)),
        ("GKD", {}, row, (2, 50)),
        ("SFT", {"dataset_text_field": "body"}, {"chosen": "c", "body": row["body"], "text": row["text"]}, (2, 12)),
        ("GRPO", {}, row, (3, 0)),
    ):
        found = longest_rows(subject(trl, **args), data_of(columns), None)
        assert found == RowLengths(*lengths), trl


SHORT, LONG, LONGER = ({"prompt": "a" * size, "completion": "b" * 4} for size in (7, 8, 9))
LONG_PAIR = {"prompt": "a" * 8, "chosen": "b" * 4, "rejected": "c"}
PAIRS = [{"prompt": "a" * 3, "chosen": "b" * size, "rejected": "c"} for size in (4, 5, 6)]


@pytest.mark.parametrize(
    ("trl", "args", "rows", "found"),
    [
        # the prompt fills 10 tokens from 8 bytes on; the wholes have 4 + 2 + 1 more than the prompt's bytes
        ("SFT", {}, [LONGER, LONG], ("10 to 16", 16)),
        ("SFT", {}, [SHORT, SHORT], None),
        ("SFT", {}, [LONGER, SHORT, LONG, SHORT], "leaves out 2 of 4 rows; the longest has 11 tokens"),
        ("SFT", {}, [LONGER, SHORT, LONG, SHORT, LONG], "leaves out 3 of 5 rows; the longest has 11 tokens"),
        ("SFT", {"packing": True}, [LONG], None),
        ("DPO", {"truncation_mode": "keep_end"}, [LONG_PAIR], None),
        ("DPO", {"truncation_mode": "keep_start"}, [LONG_PAIR], ("10 to 15", 15)),
        ("SFT", {"max_length": None}, [LONG], None),
        # they cut rows: a pair's text has its bytes and 2 more
        ("CPO", {"loss_type": "sigmoid"}, [PAIRS[0], LONG_PAIR], "cuts 1 of 2 rows; the longest has 14 tokens"),
        ("ORPO", {}, PAIRS, "cuts 1 of 3 rows; the longest has 11 tokens"),
        (
            "GKD",
            {},
            [{"messages": says("abc", "d" * size)} for size in (6, 9)],
            "cuts 1 of 2 rows; the longest has 12 tokens",
        ),
        # a pair's text: 3 + 4 bytes and 3 more fit
        ("Reward", {}, [PAIRS[1], PAIRS[2]], ("11 to 12", 12)),
        ("Reward", {}, [PAIRS[0], PAIRS[2], PAIRS[1]], "leaves out 2 of 3 rows; the longest has 12 tokens"),
    ],
)
def test_rows_that_max_length_leaves_out_or_cuts(
    trl: str, args: dict[str, object], rows: list[dict[str, object]], found: Any
) -> None:
    """A row of TRL's is left out if its prompt fills `max_length`, and a pair if a text is longer."""

    def problems(num_selected: int | None = None) -> list[Any]:
        looked_at = subject(trl, **({"max_length": 10} | args))
        return [*length_problems(looked_at, data_of(*rows, num_selected=num_selected))]

    if not isinstance(found, tuple):
        text = f"trainer.args.max_length=10 {found}"
        assert problems() == ([Notice("data.mix.a", text)] if found else [])
        return
    (error,) = problems()
    tokens, longest = found
    assert (error.where, error.hint) == ("data.mix.a", f"trainer.args.max_length={longest}")
    assert error.got == f"trainer.args.max_length=10, and rows of {tokens} tokens"
    (notice,) = problems(num_selected=9)  # there are others, which were not read
    assert f"leaves out {len(rows)} of {len(rows)} rows" in notice.text


@pytest.mark.parametrize(("trl", "args"), [("ORPO", {}), *(("CPO", {"loss_type": loss}) for loss in ("simpo", "ipo"))])
def test_a_mean_over_an_answer_that_is_cut_away_is_refused(trl: str, args: dict[str, object]) -> None:
    """The prompt has its bytes and the token before them that the trainer adds: 9 bytes fill 10 tokens."""
    looked_at = subject(trl, max_length=10, **args)
    pairs = [{"prompt": "a" * size, "chosen": "bc", "rejected": "d"} for size in (8, 9)]
    assert [type(found) for found in length_problems(looked_at, data_of(pairs[0]))] == [Notice]
    *_, error = length_problems(looked_at, data_of(*pairs))
    assert isinstance(error, DataError)
    assert (error.where, error.hint) == ("data.mix.a", "trainer.args.max_length=13")


@pytest.mark.parametrize(("most", "fills"), [(10, True), (11, False), (None, False)])
def test_an_answer_that_leaves_no_token_of_its_prompt_is_refused(most: int | None, fills: bool) -> None:
    """TRL's collator of GKD and GOLD raises in the middle of a run."""
    talks = [{"messages": says("abc", "d" * size)} for size in (4, 10)]
    found = [*length_problems(subject("GKD", max_length=most), data_of(*talks))]
    texts = [{"prompt": "abc", "completion": "d" * size} for size in (3, 9)]  # and the end of the answer
    of_gold = [*length_problems(subject("GOLD", max_length=most), data_of(*texts))]
    assert [type(one) for one in of_gold] == [DataError] * fills
    if not fills:
        assert [type(one) for one in found] == [Notice] * (most is not None)
        return
    (error,) = found
    assert isinstance(error, DataError)
    assert (error.where, error.hint) == ("data.mix.a", "trainer.args.max_length=13")
    assert "1 of 2 rows" in error.what
    long = {"messages": says("a", "d" * 1024)}
    assert [type(one) for one in length_problems(subject("GKD", max_length=None), data_of(long))] == [DataError]


@pytest.mark.parametrize("kind", ["rope_parameters", "n_embd"])
@pytest.mark.parametrize(
    ("args", "trl", "is_told"),
    [
        ({}, "SFTTrainer", True),
        ({"max_length": 9}, "SFTTrainer", True),
        ({"max_length": 8}, "SFTTrainer", False),
        ({"max_length": None}, "DPOTrainer", True),
        ({}, "GRPOTrainer", False),
    ],
)
def test_rows_beyond_the_context(args: dict[str, Any], trl: str, is_told: bool, kind: str) -> None:
    """A table of positions fails there, rotary positions go on; another check has the prompts of a rollout."""
    rows = [{"text": "a" * 8, "prompt": "a" * 8, "chosen": "b", "rejected": "c"}, {"text": "a", "prompt": "a"}]
    source = SimpleNamespace(rows=RowTable(rows, [*rows[0]]), source=SimpleNamespace(name="data.x"))
    config = {"n_positions": 8, kind: 4, "vocab_size": 258}
    trainer = Trainer(trl=trl, name="x", args=args)
    model = SimpleNamespace(build=None, path="x")
    experiment = SimpleNamespace(trainer=trainer, interacts=False, model=model)
    looked_at: Any = SimpleNamespace(experiment=experiment, tokenizer=TOKENIZER, reads_images=False)
    looked_at.config_below, looked_at.named_models = lambda _: config, dict
    found = list(context_problems(looked_at, DataFacts(training=(source,))))  # type: ignore[arg-type]
    assert len(found) == is_told
    for one in found:
        if isinstance(one, Notice):
            assert kind == "rope_parameters"
            assert "1 of 2 rows" in one.text
        else:
            assert isinstance(one, DataError)
            assert (kind, one.where, one.hint) == ("n_embd", "data.x", "trainer.args.max_length=8")


_RM = "rewards.rm.max_length"


@pytest.mark.parametrize(
    ("words", "prompt", "where", "hint"),
    [
        ("trainer=gkd teacher.path=./other", "a" * 30, "data", f"{_A}max_length=24"),
        ("trainer=gkd teacher.path=./other", "a", None, None),
        (f"trainer=gkd teacher.path=./other {_A}max_length=24", "a" * 30, None, None),
        (f"trainer=distillation teacher.path=./other {_A}max_completion_length=16", "a" * 7, "data", f"{_A}{_MOST}=15"),
        (f"trainer=distillation teacher.path=./other {_A}max_completion_length=16", "a" * 21, "data", f"{_A}{_MOST}=1"),
        (f"trainer=distillation teacher.path=./other {_A}max_completion_length=16", "a" * 6, None, None),
        (
            f"trainer=ppo reward@rewards.short=brevity critic.init=./other {_A}max_completion_length=25",
            "",
            "data",
            None,
        ),
        (
            f"trainer=grpo rewards.rm={{model:./other,max_length:25}} {_A}{_MOST}=99",
            "",
            *2 * ("rewards.rm.max_length",),
        ),
        (f"trainer=grpo rewards.rm={{model:./other}} {_A}{_MOST}=99", "a" * 99, None, None),  # cuts by itself
    ],
)
def test_every_model_beside_the_policy_has_positions_for_the_rows(
    place: Path, write: Write, words: str, prompt: str, where: str | None, hint: str | None
) -> None:
    """A table of 24 positions, read by torch's embedding; rotary positions go on."""
    folder = model_copy(place / "other")
    for name, is_told in (("gpt2", True), ("llama", False)):
        config = {"model_type": name, "n_positions": 24} | ({} if is_told else {"rope_theta": 1.0})
        (folder / "config.json").write_text(json.dumps(config))
        talk = [{"role": "user", "content": prompt}, {"role": "assistant", "content": "b"}]
        write("rows.jsonl", json.dumps({"messages": talk} if "gkd" in words else {"prompt": prompt}))
        looked_at = replace(subject_of("data=file", "data.path=rows.jsonl", *words.split()), tokenizer=TOKENIZER)
        data = Report().run(source_problems(looked_at), DataFacts())
        found = list(context_problems(looked_at, data))
        expected = [where] if where and (is_told or where != "data") else []
        assert [str(one.where).split(" (")[0] for one in found if isinstance(one, UserError)] == expected
        typed = f"{hint}=24" if hint == where else hint
        assert hint is None or not found or found[0].hint == typed
