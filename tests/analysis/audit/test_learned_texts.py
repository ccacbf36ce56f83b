"""What `check --rows` shows of rows that a trainer learns from is what TRL's trainers make of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlhf_cli.analysis.audit.tried_rows import LearnedText, learned_texts
from rlhf_cli.cli import main
from rlhf_cli.jobs.prepare import prepare
from rlhf_cli.models.tiny import byte_tokenizer

TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: "
    "{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] }}<eos>{% endgeneration %}"
    "{% else %}{{ message['content'] }}<eos>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def says(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


TALK = [user("1+1?"), says("2"), user("2+2?"), says("4")]
PAIR = {"chosen": [*TALK[:3], says("4")], "rejected": [*TALK[:3], says("who knows")]}
TEXTS = {"prompt": "1+1=", "chosen": "2", "rejected": "3 or so"}
CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("sft", {"prompt": "1+1=", "completion": "2"}, {}),
    ("sft", {"prompt": "1+1=", "completion": "2"}, {"completion_only_loss": False}),
    ("sft", {"prompt": [user("1+1?")], "completion": [says("2")]}, {}),
    ("sft", {"messages": TALK}, {}),
    ("sft", {"messages": TALK}, {"assistant_only_loss": True}),
    ("sft", {"text": "all of it"}, {}),
    ("dpo", TEXTS, {}),
    ("dpo", PAIR, {}),
    ("dpo", {"chosen": "Q: 1+1? 2", "rejected": "Q: 1+1? 3"}, {}),
    ("kto", {"prompt": "1+1=", "completion": "2", "label": True}, {}),
    ("reward", TEXTS, {}),
    ("reward", PAIR, {}),
]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    tokenizer = byte_tokenizer(256)
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def of_trl(trainer: str, row: dict[str, Any], args: dict[str, Any], tokenizer: Any, folder: Path) -> dict[str, Any]:
    """The row as the trainer of TRL prepares it."""
    import datasets
    import transformers
    import trl

    shape = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    config = transformers.LlamaConfig(vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id, **shape)
    if trainer == "reward":
        model: Any = transformers.LlamaForSequenceClassification(config)
        model.config.num_labels = 1
    else:
        model = transformers.LlamaForCausalLM(config)
        model.save_pretrained(folder / "policy")  # the reference of DPO and KTO is loaded from there
        model = transformers.AutoModelForCausalLM.from_pretrained(folder / "policy")
    name = {"sft": "SFT", "dpo": "DPO", "kto": "KTO", "reward": "Reward"}[trainer]
    arguments = getattr(trl, f"{name}Config")(output_dir=str(folder), report_to="none", use_cpu=True, **args)
    dataset = datasets.Dataset.from_list([row, row])
    made = getattr(trl, f"{name}Trainer")(model, args=arguments, train_dataset=dataset, processing_class=tokenizer)
    if trainer == "sft":
        return dict(made.data_collator([made.train_dataset[0]]))
    return dict(made.train_dataset[0])


def expected(trainer: str, prepared: dict[str, Any]) -> list[tuple[int, int]]:
    """Tokens, and those that are trained on, of each text."""
    if trainer == "sft":
        (labels,) = prepared["labels"].tolist()
        return [(len(labels), sum(label != -100 for label in labels))]
    prompt = len(prepared.get("prompt_ids", []))
    answers = [prepared[name] for name in ("chosen_ids", "rejected_ids", "completion_ids") if name in prepared]
    return [(prompt + len(ids), len(ids)) for ids in answers]


def shown(trainer: str, row: dict[str, Any], args: dict[str, Any], tokenizer: Any) -> list[LearnedText]:
    words = [f"trainer.args.{name}={value}" for name, value in args.items()]
    experiment = prepare([f"trainer={trainer}", "model=tiny", "data=toy_preferences", *words]).experiment
    return learned_texts(experiment, [row, row], tokenizer)[0]


@pytest.mark.parametrize(("trainer", "row", "args"), CASES)
def test_as_many_tokens_are_trained_on_as_in_trl(
    trainer: str, row: dict[str, Any], args: dict[str, Any], tokenizer: Any, place: Path
) -> None:
    found = shown(trainer, row, args, tokenizer)
    prepared = of_trl(trainer, row, args, tokenizer, place)
    assert [(text.tokens, text.learned_tokens) for text in found] == expected(trainer, prepared)


def test_the_parts_are_those_in_their_order(tokenizer: Any, place: Path) -> None:
    (text,) = shown("sft", {"messages": TALK}, {"assistant_only_loss": True}, tokenizer)
    assert [(span.text, span.is_learned) for span in text.spans] == [
        ("user: 1+1?<eos>assistant: ", False), ("2<eos>", True),
        ("user: 2+2?<eos>assistant: ", False), ("4<eos>", True),
    ]  # fmt: skip
    chosen, rejected = shown("dpo", PAIR, {}, tokenizer)
    assert [span.text for span in chosen.spans][1] == "4<eos>"
    assert [span.text for span in rejected.spans][1] == "who knows<eos>"
    sharegpt = {"conversations": [{"from": "user", "value": "1+1?"}, {"from": "assistant", "value": "2"}]}
    (talk,) = shown("sft", sharegpt, {}, tokenizer)
    assert [span.text for span in talk.spans] == ["user: 1+1?<eos>assistant: 2<eos>"]


def test_the_screen_shows_both_answers_and_what_is_trained_on(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "+exp=toy_dpo", "--rows", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:6] == [
        "row 0",
        "  chosen, 9 tokens, 3 of them trained on",
        "18+10=⟦28<eos>⟧",
        "  rejected, 20 tokens, 14 of them trained on",
        "18+10=⟦the sum is 18<eos>⟧",
    ]
