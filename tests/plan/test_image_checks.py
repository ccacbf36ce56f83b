"""`rlhf check` refuses what would keep images from the model, and says what to type."""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trl

from rlhf_cli.data.images import in_parts
from rlhf_cli.errors import UserError
from rlhf_cli.plan.preflight import preflight
from rlhf_cli.plan.prepare import prepare
from rlhf_cli.plan.run_plan import Plan
from tests.support.model_copies import model_copy
from tests.support.tiny_images import rows_in, write_model

ANSWER = [{"role": "assistant", "content": "red"}]
PAIR = {"chosen": ANSWER, "rejected": ANSWER}


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vlm")
    write_model(folder)
    return folder


@pytest.fixture
def planned(place: Path, stored: Path) -> Callable[..., Plan]:
    """`planned("grpo", *words, **columns)` checks rows with images, with columns changed or (None) left out.

    A third of `data/cut.png` is missing.
    """

    def plan(trainer: str, *words: str, **columns: object) -> Plan:
        rows_in(place / "data", **columns)
        whole = (place / "data" / "seen" / "0.png").read_bytes()
        (place / "data" / "cut.png").write_bytes(whole[: len(whole) * 2 // 3])
        rewarded = ["rewards.sees.fn=./data/rewards.py:sees"] * (trainer in ("grpo", "ppo"))
        typed = [f"trainer={trainer}", "model=local", f"model.path={stored}", "data=file", "data.path=data/rows.jsonl"]
        prepared = prepare([*typed, "launch=cpu", "track=none", *rewarded, *words])
        return preflight(prepared.experiment, prepared.composed, tries_rewards=True)

    return plan


def test_rows_with_images_pass(planned: Callable[..., Plan]) -> None:
    """The reward's trial opens the first image; no column is called unread."""
    plan = planned("grpo")
    assert plan.unread == ()
    assert plan.passes is not None
    assert plan.passes.mode == "plain"
    places = [{"role": "user", "content": [{"type": "text", "text": "Which?"}, {"type": "image"}]}]
    assert planned("grpo", prompt=places).num_rows == 8
    assert planned("dpo", **PAIR).num_rows == planned("sft", completion=ANSWER).num_rows == 8


CASES: list[tuple[str, list[str], dict[str, Any], str]] = [
    ("grpo", [], {"image": "nowhere.png"}, "row 1"),
    ("grpo", [], {"image": "rewards.py"}, "row 1"),  # no image
    ("sft", [], {"completion": ANSWER, "image": "rewards.py"}, "row 1"),
    ("sft", [], {"completion": ANSWER, "image": "https://host.invalid/a.png"}, "row 1"),
    ("sft", [], {"completion": ANSWER, "image": "data:image/png;base64,iVBORw0KGgo="}, "row 1"),
    ("sft", [], {"completion": ANSWER, "image": None, "images": ["cut.png"]}, "row 1"),
    ("grpo", ["rewards.sees.trial=false"], {"image": "cut.png"}, "row 1"),
    ("grpo", ["rewards.sees.trial=false"], {"image": {"bytes": "", "path": None}}, "row 1"),
    ("grpo", ["rewards.sees.trial=false"], {"prompt": "Which?"}, "row 1"),
    ("grpo", [], {"prompt": [{"role": "user", "content": [{"type": "image"}, {"type": "image"}]}]}, "row 1"),
    ("grpo", ["trainer.passes=packed"], {}, "trainer.passes"),
    ("grpo", ["launch.rollout=continuous"], {}, "launch.rollout"),
    ("grpo", ["sampling.keep_groups.by=sees"], {}, "sampling.keep_groups"),
    ("dpo", ["trainer.args.precompute_ref_log_probs=true"], PAIR, "trainer.args.precompute_ref_log_probs"),
    ("grpo", ["model.chat_template='{% for m in messages %}{{ m.content[-1].text }}{% endfor %}'"], {}, "row 1"),
    ("sft", ["trainer.args.packing=true"], {"completion": ANSWER}, "trainer.args.packing"),
    ("ppo", [], {}, "data"),
    ("kto", [], {"completion": ANSWER, "label": True}, "data"),
    ("reward", [], PAIR, "data"),
]


@pytest.mark.parametrize(("trainer", "words", "columns", "where"), CASES)
def test_refused(
    planned: Callable[..., Plan], trainer: str, words: list[str], columns: dict[str, Any], where: str
) -> None:
    with pytest.raises(UserError) as error:
        planned(trainer, *words, **columns)
    assert f"where:    {where}" in str(error.value) or f", {where} " in str(error.value)
    assert "\n  got: " in str(error.value)
    assert "\n  expected: " in str(error.value) or where not in ("row 1", "data")
    typed = "data.rename.picture=image" if where == "data" else f"{where}="
    told = [f"{problem.hint} {problem.advice}" for problem in getattr(error.value, "problems", [error.value])]
    assert where == "row 1" or any(typed in text for text in told)


def test_a_long_prompt_is_counted_where_no_row_has_an_image(planned: Callable[..., Plan]) -> None:
    """The template writes 6 tokens before it and 12 after it; the model reads 2048, and 48 are for the answer."""

    def checked(length: int) -> Plan:
        words = ("reward@rewards.short=brevity", "trainer.args.max_completion_length=48")
        return planned("rloo", *words, image=None, prompt=[{"role": "user", "content": "x" * length}])

    assert checked(1982).num_rows == 8
    with pytest.raises(UserError) as caught:
        checked(1983)
    assert "the longest has 2001 tokens" in str(caught.value.got)


def test_a_text_that_names_the_place_of_an_image_gives_a_notice(planned: Callable[..., Plan], place: Path) -> None:
    """Of LLaVA's and LLaMA-Factory's rows; whether or not the model reads the image."""
    blind = f"model.path={model_copy(place / 'text')}"
    for words in ([], [blind, "data.rename.picture=image"]):
        for text, is_told in (("<image>\nWhich?", True), ("Which?", False)):
            asked = [{"role": "user", "content": text}]
            notices = planned("sft", *words, prompt=asked, completion=ANSWER).notices
            assert any(one.text.startswith("8 of the first 8 rows hold the text <image>") for one in notices) is is_told


@pytest.mark.parametrize(("module", "package"), [("PIL", "pillow"), ("torchvision", "torchvision")])
def test_a_missing_package_is_named(
    planned: Callable[..., Plan], place: Path, stored: Path, monkeypatch: Any, module: str, package: str
) -> None:
    copy = shutil.copytree(stored, place / "copy")
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"video_token_id": 3} if package == module else config))
    adapter = shutil.copytree(copy, place / "adapter", ignore=shutil.ignore_patterns("config.json"))
    (adapter / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(copy)}))
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == module else find(name))
    for folder in (copy, adapter):
        with pytest.raises(UserError) as error:
            planned("grpo", f"model.path={folder}", "rewards.sees.trial=false")
        assert (str(error.value.where).split()[0], error.value.hint) == ("model.path", f"pip install {package}")


def test_parts_are_trl_s() -> None:
    talk = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}, {"role": "user", "content": "v"}]
    theirs = trl.data_utils.prepare_multimodal_messages(talk, ["one", "two"])
    for part in [part for message in theirs for part in message["content"]]:
        part.pop("image", None)
    assert in_parts(talk, 2) == theirs
