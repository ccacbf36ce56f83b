"""What `check --rows` shows: prompts as the model sees them, and what TRL's trainers make of rows to learn from."""

from __future__ import annotations

import importlib
import itertools
import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import pytest
import transformers
import trl
from transformers import tokenization_utils_base

from rlhf_cli.cli import main
from rlhf_cli.errors import DataError, ModelError
from rlhf_cli.evaluation.audit import trial
from rlhf_cli.evaluation.audit.trial import after_truncation
from rlhf_cli.models.byte_tokenizer import byte_tokenizer
from rlhf_cli.models.tokenizer_files import read_tokenizer
from rlhf_cli.plan.prepare import prepare
from rlhf_cli.plan.row_tokens import RowCounter
from rlhf_cli.rewards.stack.scored_rows import ScoredReward, ScoredRow
from rlhf_cli.tables.trl_trainers import TRAINERS
from rlhf_cli.trainers.assemble import tried_rows
from rlhf_cli.trainers.assemble.prepared_rows import prepared_rows
from rlhf_cli.trainers.assemble.trainer import training_rows
from rlhf_cli.trainers.assemble.tried_rows import LearnedText, Span, learned_texts, prompts_seen

NAMES = ("llama3", "qwen2_5", "gemma3")
SPECIAL = [
    *("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    *("<|im_start|>", "<|im_end|>", "<bos>", "<start_of_turn>", "<end_of_turn>"),
]


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def says(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


TALK = [user("1+1?"), says("2"), user("2+2?"), says("4")]
WHOLE = {"chosen": [*TALK[:3], says("4")], "rejected": [*TALK[:3], says("who knows")]}
TURN = {"prompt": TALK[:3], "chosen": [says("4")], "rejected": [says("who knows")]}
TEXTS = {"prompt": "1+1=", "chosen": "2", "rejected": "3 or so"}
LONG = {"prompt": "x" * 30, "completion": "12345"}
CALL = {"name": "look_up", "arguments": {"x": 1}}
TOOLS = [{"type": "function", "function": {"name": "look_up", "description": "d", "parameters": {"type": "object"}}}]
CALLING = [user("hi"), says("") | {"tool_calls": [{"type": "function", "function": CALL}]}, says("seven")]
ONE = {"prompt": "1+1=", "completion": "2"}
CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("sft", ONE, {}),
    ("sft", ONE, {"completion_only_loss": False, "eos_token": "<end_of_turn>"}),
    ("sft", {"prompt": TALK[:1], "completion": TALK[1:2]}, {}),
    ("sft", {"messages": TALK}, {}),
    ("sft", {"messages": TALK}, {"assistant_only_loss": True}),
    ("sft", {"messages": TALK, "chat_template_kwargs": {"bos_token": "<eos>"}}, {}),
    ("sft", {"messages": CALLING, "tools": TOOLS}, {}),
    ("sft", {"text": "all of it"}, {}),
    ("sft", {"body": "all of it"}, {"dataset_text_field": "body"}),
    ("sft", {"input_ids": [5, 6, 7], "labels": [-100, 6, 7]}, {}),
    ("sft", LONG, {"max_length": 32}),
    ("sft", LONG, {"max_length": 20, "truncation_mode": "keep_end"}),
    ("dpo", TEXTS, {}),
    ("dpo", WHOLE, {}),
    ("dpo", TURN | {"tools": TOOLS}, {}),
    ("dpo", {"chosen": "Q: 1+1? 2", "rejected": "Q: 1+1? 3"}, {}),
    ("dpo", TEXTS, {"max_length": 5}),
    ("dpo", TEXTS, {"max_length": 3, "truncation_mode": "keep_end"}),
    ("kto", ONE | {"label": True}, {}),
    ("kto", TEXTS, {}),
    ("kto", TURN, {}),
    ("kto", ONE | {"label": True}, {"max_length": 5}),
    ("reward", TEXTS, {}),
    ("reward", WHOLE, {}),
    ("reward", TURN | {"tools": TOOLS}, {"eos_token": "<end_of_turn>"}),
    ("reward", TEXTS, {"max_length": 8}),
    ("orpo", TEXTS, {}),
    ("orpo", TURN, {}),
    ("orpo", TEXTS, {"max_length": 6}),
    ("tpo", TURN | {"reference": [says("four")]}, {}),
]


def tokenizer_of(template: str) -> Any:
    """A byte tokenizer with the real chat template that TRL ships under this name."""
    tokenizer = byte_tokenizer(2048)
    tokenizer.add_special_tokens({"additional_special_tokens": SPECIAL, "bos_token": "<bos>"})
    tokenizer.chat_template = (Path(trl.__file__).parent / "chat_templates" / f"{template}.jinja").read_text()
    return tokenizer


def of_trl(trainer: str, rows: list[dict[str, Any]], args: dict[str, Any], tokenizer: Any, folder: Path) -> Any:
    """TRL's own trainer over these rows, made by hand."""
    row = TRAINERS[{"sft": "SFT", "kto": "KTO", "reward": "Reward"}.get(trainer, trainer.upper()) + "Trainer"]
    module = importlib.import_module(row.module)
    shape = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    config = transformers.LlamaConfig(vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id, **shape)
    if trainer == "reward":
        model: Any = transformers.LlamaForSequenceClassification(config)
        model.config.num_labels = 1
    else:
        model = transformers.LlamaForCausalLM(config)
        model.save_pretrained(folder / "policy")  # the reference of DPO and KTO is loaded from there
        model = transformers.AutoModelForCausalLM.from_pretrained(folder / "policy")
    arguments = getattr(module, row.config_class)(output_dir=str(folder), report_to="none", use_cpu=True, **args)
    dataset = datasets.Dataset.from_list(rows)
    return getattr(module, row.name)(model, args=arguments, train_dataset=dataset, processing_class=tokenizer)


def expected(trainer: str, made: Any) -> list[tuple[str, list[int], list[int]]]:
    """Column, tokens and those that are trained on, of each text of TRL's prepared rows, cut as TRL's collator cuts."""
    texts = []
    for entry in made.train_dataset:
        if trainer == "sft":
            texts.append(("", entry["input_ids"], [one for one in entry["labels"] if one != -100]))
        elif trainer in ("orpo", "cpo"):
            for name in ("chosen", "rejected"):
                labels = [one for one in entry[f"{name}_labels"] if one != -100]
                texts.append((name, entry[f"{name}_input_ids"], labels))
        else:
            cut = None if trainer == "reward" else made.args.max_length
            side = slice(-cut, None) if getattr(made.args, "truncation_mode", "") == "keep_end" else slice(None, cut)
            prompt = entry.get("prompt_ids", [])
            for name in ("chosen", "rejected", "reference", "completion"):
                if f"{name}_ids" in entry:
                    pairs = [*((one, False) for one in prompt), *((one, True) for one in entry[f"{name}_ids"])][side]
                    is_pair = name == "completion" and "chosen" in made.train_dataset.column_names
                    name = ("chosen" if entry["label"] else "rejected") if is_pair else name
                    texts.append((name, [one for one, _ in pairs], [one for one, learned in pairs if learned]))
    return texts


@pytest.mark.filterwarnings("ignore:The .*keep_end")
@pytest.mark.parametrize(
    ("trainer", "row", "args", "template"),
    [
        *((*case, "llama3" if "tools" in case[1] else name) for case, name in zip(CASES, itertools.cycle(NAMES))),
        *(("cpo", TURN, {}, name) for name in NAMES),  # it adds the begin that qwen2_5 lacks
    ],
)
def test_the_tokens_are_those_of_trl(
    trainer: str, row: dict[str, Any], args: dict[str, Any], template: str, place: Path
) -> None:
    tokenizer, rows = tokenizer_of(template), [row] * 4
    words = [f"trainer.args.{name}={json.dumps(value)}" for name, value in args.items()]
    (place / "rows.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    tokenizer.save_pretrained(place / "tokenizer")
    experiment = prepare([f"trainer={trainer}", "model=tiny", "data=file", "data.path=rows.jsonl", *words]).experiment
    found = prepared_rows(experiment, training_rows(experiment)[0], tokenizer)
    assert logging.getLogger().isEnabledFor(logging.WARNING), "what comes afterwards is heard again"
    shown = [
        (column, ids, [one for one, learned in zip(ids, is_learned, strict=True) if learned])
        for texts in found
        for column, ids, is_learned in texts
    ]
    wanted = expected(trainer, of_trl(trainer, rows, args, tokenizer_of(template), place))
    if trainer == "kto":  # TRL puts all chosen answers first
        shown, wanted = sorted(shown, key=str), sorted((text for text in wanted), key=str)
        assert {column for column, *_ in shown} == ({"chosen", "rejected"} if "chosen" in row else {"completion"})
    assert [text[1:] for text in shown] == [text[1:] for text in wanted]
    assert shown or trainer == "reward"  # which leaves long rows out
    if not {"max_length", "dataset_text_field"} & set(args):  # the plan counts what is cut off, too
        read = experiment.trainer.row
        counter = RowCounter(read_tokenizer(place / "tokenizer", where="model"), {}, read.along, read.adds_ends)
        assert counter.wholes([row]) == [max(len(ids) for _, ids, _ in wanted)]


def test_a_row_that_trl_leaves_out_keeps_its_place(place: Path) -> None:
    tokenizer = tokenizer_of("llama3")
    rows = [{"prompt": "x" * n, "completion": "12"} for n in (5, 50, 6)]
    (place / "rows.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    words = ["trainer=sft", "model=tiny", "data=file", "data.path=rows.jsonl", "trainer.args.max_length=20"]
    experiment = prepare([*words, "trainer.args.shuffle_dataset=true", "trainer.args.packing=true"]).experiment
    found = learned_texts(experiment, training_rows(experiment)[0], tokenizer)
    assert [[text.tokens for text in texts] for texts in found] == [[8], [], [9]]
    assert [[(span.text, span.is_learned) for span in text.spans] for text in found[0]] == [
        [("xxxxx", False), ("12<eos>", True)]
    ]


def test_a_margin_is_no_text(place: Path) -> None:
    rows = [TEXTS | {"margin": number / 2} for number in range(4)]
    (place / "rows.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    words = ["trainer=reward", "model=tiny", "data=file", "data.path=rows.jsonl", "reward_model.margin.column=margin"]
    experiment = prepare(words).experiment
    found = learned_texts(experiment, training_rows(experiment)[0], tokenizer_of("llama3"))
    assert [[text.column for text in texts] for texts in found] == [["chosen", "rejected"]] * 4


def test_the_screen_shows_both_answers_and_what_is_trained_on(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "+exp=toy_dpo", "--rows", "1"]) == 0
    shown = "  chosen, 9 tokens, 3 of them trained on\n18+10=⟦28<eos>⟧\n  rejected, 20 tokens, 14 of them trained on\n"
    assert shown in capsys.readouterr().out


WORDS = ["trainer=grpo", "data=toy_sums", "reward@rewards.right=sums_correct"]
TEMPLATE = (
    "{% for message in messages %}<eos>{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<eos>assistant:{% if brief %} (brief){% endif %}{% endif %}"
)
CHAT = [{"role": "user", "content": "Grüße"}]


def test_a_conversation_is_rendered_and_its_special_tokens_are_known(place: Path, monkeypatch) -> None:
    """Grüße is seven bytes. The template's two <eos> are one token each, and no text. An answer may be as long as it
    likes, and a long prompt is refused in words of our own: the tokenizer warns of neither.
    """
    tokenizer = byte_tokenizer(64)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(place / "policy")
    experiment = prepare([*WORDS, "model.path=./policy", "model.build=null"]).experiment
    (seen,) = prompts_seen(experiment, [CHAT, CHAT], shown=1).prompts
    assert seen.text == "<eos>user: Grüße\n<eos>assistant:"
    assert seen.tokens == 2 + len("user: \nassistant:") + 7
    warnings: list[str] = []
    monkeypatch.setattr(tokenization_utils_base.logger, "warning", warnings.append)
    (seen,) = prompts_seen(experiment, ["x" * 65], shown=1, answers=["1" * 65]).prompts
    assert (seen.tokens, warnings) == (65, [])


def test_lengths(place: Path) -> None:
    """Of 1, 2, 3, 4 and 5 bytes: the median 3, a quarter below 2."""
    experiment = prepare([*WORDS, "model=tiny"]).experiment
    seen = prompts_seen(experiment, ["x" * n for n in (1, 2, 3, 4, 5)], shown=0, answers=["12", "3456"])
    prompts, answers = seen.lengths
    assert (prompts.count, *(prompts.quantiles[share] for share in ("0.5", "0.25", "1"))) == (5, 3, 2, 5)
    assert (answers.of, answers.quantiles["0.5"]) == ("right answers", 3)
    assert seen.prompts == []
    assert [prompt.tokens for prompt in prompts_seen(experiment, ["xx"], shown=1).prompts] == [2]


def test_texts_that_are_learned_are_counted_by_column_and_rows_left_out_are_named(monkeypatch) -> None:
    """Lengths are of more rows than are shown, and of no more than there are."""

    def text(column: str, end: str, tokens: int) -> LearnedText:
        return LearnedText(column, [Span("1+1=", False), Span(end, True)], tokens, 1)

    asked: list[int] = []
    learned = [[text("chosen", "2<eos>", 3), text("rejected", "3<eos>", 9)], [], [text("chosen", "4<eos>", 5)]]
    rows = datasets.Dataset.from_list([{"row": 0}] * 1200), {}, {}
    monkeypatch.setattr("rlhf_cli.trainers.assemble.trainer.training_rows", lambda _: rows)
    monkeypatch.setattr(tried_rows, "learned_texts", lambda _, rows, tokenizer: asked.append(len(rows)) or learned)
    monkeypatch.setattr(tried_rows, "policy_tokenizer", lambda *_, **__: SimpleNamespace(eos_token="<eos>"))
    experiment: Any = SimpleNamespace(trainer=SimpleNamespace(row=SimpleNamespace(learns_from=True)))
    found, *_ = (tried_rows.try_rows(experiment, count) for count in (2, 1100, 5000))
    assert asked == [1000, 1100, 1200]
    assert found.seen is not None
    assert [(one.of, one.count, one.quantiles["1"]) for one in found.seen.lengths] == [
        ("chosen", 2, 5),
        ("rejected", 1, 9),
    ]
    assert (found.seen.ends_with, found.learned) == ("<eos>", learned[:2])
    assert "1 of 3 " in found.notes[0]
    assert found.notes[0].endswith(" 1")
    learned[:] = [learned[0], [text("chosen", "cut off", 5)]]
    cut = tried_rows.try_rows(experiment, 2)
    assert cut.seen is not None
    assert (cut.seen.ends_with, cut.notes) == ("", ())

    def refuse(*_: Any, **__: Any) -> None:
        raise ModelError("no tokenizer", where="model.path")

    monkeypatch.setattr(tried_rows, "policy_tokenizer", refuse)
    none = tried_rows.try_rows(experiment, 2)
    assert (none.seen, "no tokenizer" in str(none.why_not_seen)) == (None, True)


PENALTY = ("truncation=eos_penalty", "truncation.penalty=0.1")
RAMP = ("truncation=soft_overlong", "truncation.penalty=1.0", "truncation.cache=8")
RAMP += ("trainer.args.max_completion_length=16",)


@pytest.mark.parametrize(
    ("words", "is_cut", "total"),
    [
        (PENALTY, True, 1.9),  # in float64
        (PENALTY, False, 2.0),
        ((*PENALTY, "truncation.mode=replace"), True, -0.1),
        (("truncation=exclude",), True, None),
        (("truncation=none",), True, 2.0),
        (RAMP, False, 2.0 - 6 / 8),  # 14 of 16 tokens are 6 of the last 8 on their way to -1
        (RAMP, True, 1.0),  # an answer that was cut has all 16
    ],
)
def test_an_answer_that_is_cut_off_by_hand(place: Path, words: tuple[str, ...], is_cut: bool, total: Any) -> None:
    experiment = prepare([*WORDS, "model=tiny", *words]).experiment
    reward = ScoredReward(raw=2.0, effective=2.0, weighted=2.0, open=True, error=None)
    (row,) = after_truncation(experiment, [ScoredRow(2.0, {"right": reward})], ["x" * 14], [is_cut], 16)
    assert row.total == pytest.approx(total, rel=None if total is None else 1e-12)


def test_the_tokens_of_an_answer_are_counted_without_special_ones(place: Path, monkeypatch) -> None:
    def tokenizer(texts: list[str], *, add_special_tokens: bool = True, **_: object) -> dict[str, list[list[int]]]:
        return {"input_ids": [[0] * (len(text) + 2 * add_special_tokens) for text in texts]}

    monkeypatch.setattr(trial, "policy_tokenizer", lambda *_, **__: tokenizer)
    test_an_answer_that_is_cut_off_by_hand(place, RAMP, False, 2.0 - 6 / 8)


def test_rows_without_what_is_learnt_are_named_by_their_set(place: Path) -> None:
    (place / "t.jsonl").write_text('{"prompt": "q", "completion": "a"}\n' * 8)
    (place / "e.jsonl").write_text('{"prompt": "q"}\n' * 8)
    words = ["trainer=sft", "model=tiny", "data=file", "data.path=t.jsonl", "data.eval.path=e.jsonl"]
    with pytest.raises(DataError) as caught:
        training_rows(prepare(words).experiment)
    assert caught.value.where == "data.eval"
