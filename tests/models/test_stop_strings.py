"""Stop strings end rows as transformers ends them when it is given a tokenizer, and as vLLM does: by the completion."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, PreTrainedTokenizerFast

from rlhf_cli.models.live_generation import Generating, StopCriterion, StopStrings
from rlhf_cli.models.tokenizer_files import EMBEDDED_TOKENIZER


@pytest.fixture(scope="module")
def policy() -> tuple[Any, Any]:
    model: Any = AutoModelForCausalLM.from_pretrained(EMBEDDED_TOKENIZER)
    return model.eval(), AutoTokenizer.from_pretrained(EMBEDDED_TOKENIZER, padding_side="left")


def settings(tokenizer: Any, **more: object) -> GenerationConfig:
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    return GenerationConfig(max_new_tokens=12, do_sample=True, temperature=4.0, **ends, **more)


@pytest.mark.parametrize("is_plain", [False, True])
@pytest.mark.parametrize("stops", [list("abcdefghijklmn"), list("ABCDEFGHIJKLMNOP"), list("qrstuvwxyz")])
def test_rows_end_where_transformers_ends_them(policy: tuple[Any, Any], stops: list[str], is_plain: bool) -> None:
    """The reference is `generate` with `stop_strings` and a tokenizer. No prompt holds any of the texts."""
    model, tokenizer = policy
    asked = tokenizer(["20+34 ", "5+8 ", "9+9 ", "30+40 "] * 4, return_tensors="pt", padding=True)
    asked = {name: asked[name] for name in ("input_ids", "attention_mask")}
    torch.manual_seed(0)
    reference = model.generate(**asked, generation_config=settings(tokenizer, stop_strings=stops), tokenizer=tokenizer)
    generating = Generating(is_plain=is_plain, stops=StopStrings(tokenizer, stops))
    torch.manual_seed(0)
    ours = generating.generate(model.generate, **asked, generation_config=settings(tokenizer))
    assert generating.mode is not None
    assert generating.mode.name == ("plain" if is_plain else "live")
    assert torch.equal(ours, reference)
    torch.manual_seed(0)
    without = model.generate(**asked, generation_config=settings(tokenizer))
    assert not torch.equal(reference, without)


def test_a_text_that_begins_in_the_prompt_stops_nothing(policy: tuple[Any, Any]) -> None:
    """transformers' own criterion ends this row at once: prompt and first token make the text together."""
    _, tokenizer = policy
    stops = StopStrings(tokenizer, ["\n\n"])
    for text, prompt, ends in (("a\n\n", 0, True), ("a\n\n", 2, False), ("a\n\n\n", 2, True)):
        assert StopCriterion(stops, prompt)(torch.tensor([tokenizer(text)["input_ids"]]), None).tolist() == [ends]


@pytest.mark.parametrize(
    ("text", "kept"), [("a</s>", "a</s>"), ("a</s><eos>", "a</s>"), ("x</sy", None), ("", None), ("a|b</s>", "a|")]
)
def test_a_completion_is_cut_behind_its_first_stop_string(policy: tuple[Any, Any], text: str, kept: str | None) -> None:
    _, tokenizer = policy
    stops, ids = StopStrings(tokenizer, ["</s>", "|"]), tokenizer(text)["input_ids"]
    assert stops.length(ids) == (None if kept is None else len(tokenizer(kept)["input_ids"]))
    assert tokenizer.decode(stops.cut(ids)) == (text if kept is None else kept)


@pytest.mark.parametrize(
    ("text", "ends"),
    [("a</s>", True), ("</s>a</s>", True), ("</s>a", False), ("a|b</s", False), ("", False), ("|é", True)],
)
def test_a_row_has_stopped_only_at_its_end(policy: tuple[Any, Any], text: str, ends: bool) -> None:
    """An earlier turn, or a tool's result, may hold the text; é is two tokens of this tokenizer."""
    _, tokenizer = policy
    assert StopStrings(tokenizer, ["</s>", "|", "é"]).ends(tokenizer(text)["input_ids"]) is ends


def test_the_spaces_of_a_completion_are_not_tidied() -> None:
    """Some tokenizers remove the space before a full stop when they decode."""
    words = Tokenizer(WordLevel({"a": 0, ".": 1}, unk_token="a"))
    stops = StopStrings(PreTrainedTokenizerFast(tokenizer_object=words, clean_up_tokenization_spaces=True), ["a ."])
    assert stops.length([0, 0, 1, 1]) == 3


def test_the_names_of_both_libraries(policy: tuple[Any, Any]) -> None:
    for given, texts in (({"stop": "."}, (".",)), ({"stop_strings": ["a", "b"]}, ("a", "b"))):
        stops = StopStrings.of(policy[1], given)
        assert stops is not None
        assert stops.texts == texts
    assert [StopStrings.of(policy[1], given) for given in (None, {}, {"stop_strings": []})] == [None] * 3
