"""`model.chat_template` is the one template of a run: in training, checks, evaluation, and in the folder it gives away.

The expected texts are written by hand: the template marks roles in angle brackets, which no shipped template does.
Some tokenizers pad with their end-of-sequence token, as SmolLM2's does; transformers reads a score at the last token
that is no padding, so such an end would be passed over.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig, AutoTokenizer

from rlhf_cli.cli import main
from rlhf_cli.errors import ModelError, UserError
from rlhf_cli.evaluation.evaluation_run import load_policy
from rlhf_cli.models.reward_model_scorer import RewardModelScorer
from rlhf_cli.models.tokenizer_files import padding_beside, read_tokenizer
from rlhf_cli.plan.preflight import preflight
from rlhf_cli.plan.prepare import prepare
from rlhf_cli.runs.reward_records import trained_with_eos
from rlhf_cli.trainers.assemble.tried_rows import try_rows
from tests.support.model_copies import model_copy
from tests.support.small_runs import SMALL

TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<bot>{% endif %}\n"
)
ASKED = 'data.prompt=[{role: user, content: "{prompt}"}]'
SFT = ["trainer=sft", "data=toy_demonstrations", "model=tiny_untrained"]


@pytest.fixture
def template(workplace: Path) -> Path:
    file = workplace / "mine.jinja"
    file.write_text(TEMPLATE)
    return file


def rendered(tokenizer: Any) -> str:
    return tokenizer.apply_chat_template(
        [{"role": "user", "content": "1+1="}], tokenize=False, add_generation_prompt=True
    )


def test_training_keeps_it_and_resumes_without_its_file(
    train, template: Path, before_training: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    before_training(lambda trainer: seen.append(rendered(trainer.processing_class)))
    code, run = train(ASKED, "model.chat_template=mine.jinja", "trainer.args.max_steps=1")
    assert (code, seen) == (0, ["<user>1+1=<bot>"])
    assert (run.model / "chat_template.jinja").read_text() == TEMPLATE
    template.unlink()
    (elsewhere := tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(elsewhere)
    assert main(["resume", str(run.path), "--allow", "trainer.args.max_steps", "trainer.args.max_steps=2"]) == 0
    assert seen == ["<user>1+1=<bot>"] * 2
    changed = ["model.chat_template='{{ messages[0].content }}'", "trainer.args.max_steps=3"]
    assert main(["resume", str(run.path), *changed, "--allow", "trainer.args.max_steps"]) == 2


def test_every_reader_of_a_prompt_uses_it(template: Path) -> None:
    """A token is a byte, and the longest sum in toy_sums has six."""
    words = [*SMALL, ASKED, "model.chat_template=mine.jinja"]
    experiment = prepare(words).experiment
    assert experiment.model.chat_template == TEMPLATE
    tried = try_rows(experiment, 1)
    assert [answer.kind for answer in tried.answers[0]] == ["gold", "empty", "echo"]
    assert (seen := tried.seen) is not None
    assert seen.prompts[0].text.startswith("<user>")
    assert seen.prompts[0].text.endswith("=<bot>")
    workload = preflight(experiment, prepare(words).composed).workload
    assert workload is not None
    assert workload.longest_prompt == len("<user>10+10=<bot>")
    from rlhf_cli.trainers.assemble.policy_loading import policy_path

    model = Path(policy_path(experiment, lambda what, step, steps: None))
    assert rendered(load_policy(model, experiment).tokenizer) == "<user>1+1=<bot>"


@pytest.mark.parametrize("template_is", ["gone.jinja", ".", "latin1.jinja", "'{{ messages'"])
def test_what_cannot_be_a_template(template: Path, template_is: str) -> None:
    template.with_name("latin1.jinja").write_bytes("{{ 'é' }}".encode("latin-1"))
    with pytest.raises(ModelError) as caught:
        prepare([*SFT, f"model.chat_template={template_is}"])
    assert caught.value.where == "model.chat_template (command line)"


def test_a_template_is_given_once(template: Path) -> None:
    with pytest.raises(UserError) as caught:
        prepare([*SFT, "model.chat_template=mine.jinja", "trainer.args.chat_template_path=mine.jinja"])
    assert caught.value.where == "trainer.args.chat_template_path (command line)"


SAME = {"pad_token": "<eos>"}


def reads_the_end(model: Path) -> bool:
    (ended,), (cut,) = (RewardModelScorer(str(model), with_eos=one)(["1+1="], ["it is 2"]) for one in (True, False))
    return ended != cut


@pytest.mark.whole
def test_a_reward_model_is_padded_with_another_token_and_reads_the_end(stage, workplace: Path) -> None:
    model_copy(workplace / "base", tokenizer_config=SAME)
    code, run = stage("reward", model=["model=local", "model.path=base"])
    assert code == 0
    tokenizer = AutoTokenizer.from_pretrained(run.model)
    assert (tokenizer.pad_token, tokenizer.eos_token) == ("<pad>", "<eos>")
    assert AutoConfig.from_pretrained(run.model).pad_token_id == tokenizer.pad_token_id
    assert trained_with_eos(run.model) is True
    assert reads_the_end(run.model)
    tokenizer.pad_token = "<eos>"  # control: the same weights, padded as before
    tokenizer.save_pretrained(run.model)
    assert not reads_the_end(run.model)


def test_which_token_pads_instead(tmp_path: Path) -> None:
    """SmolLM2's first special token is no part of its template; GPT-2 has one special token in all."""
    smol = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>"]
    assert padding_beside("<|im_end|>", smol, "<|im_start|>{{ x }}<|im_end|>") == "<|endoftext|>"
    assert padding_beside("</s>", ["<unk>", "<s>", "</s>", "[PAD]"], None) == "[PAD]"
    assert padding_beside("<|endoftext|>", ["<|endoftext|>"], None) is None
    tokenizer = read_tokenizer(model_copy(tmp_path / "model", tokenizer_config=SAME), where="here")
    assert (tokenizer.unread_end, tokenizer.other_padding) == ("<eos>", "<pad>")
    assert read_tokenizer(model_copy(tmp_path / "other"), where="here").unread_end is None
