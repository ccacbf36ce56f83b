"""`model.chat_template` is the one template of a run: in training, checks, evaluation, and in the folder it gives away.

The expected texts are written by hand: the template marks roles in angle brackets, which no shipped template does.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlhf_cli.cli import main
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.errors import ModelError, Problems, UserError
from rlhf_cli.evaluation.evaluation_run import load_policy
from rlhf_cli.plan.preflight import preflight
from rlhf_cli.plan.prepare import prepare
from rlhf_cli.trainers.assemble.tried_rows import try_rows
from tests.support.small_runs import SMALL

TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<bot>{% endif %}\n"
)
ASKED = 'data.prompt=[{role: user, content: "{prompt}"}]'
SFT = [
    *("trainer=sft", "data=toy_demonstrations", "model=tiny_untrained", "launch=cpu", "track=none", "run.name=one"),
    *("model.build.hidden_size=16", "model.build.num_layers=1", "trainer.args.max_steps=1"),
]


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
    seen = try_rows(experiment, 1).seen
    assert seen is not None
    assert seen.prompts[0].text.startswith("<user>")
    assert seen.prompts[0].text.endswith("=<bot>")
    workload = preflight(experiment, prepare(words).composed).workload
    assert workload is not None
    assert workload.longest_prompt == len("<user>10+10=<bot>")
    from rlhf_cli.trainers.assemble.policy_loading import policy_path

    model = Path(policy_path(experiment, lambda what, step, steps: None))
    assert rendered(load_policy(model, experiment).tokenizer) == "<user>1+1=<bot>"


@pytest.mark.whole
def test_trl_s_argument_for_a_file_is_the_same_key(template: Path, before_training: Callable[..., None]) -> None:
    seen: list[str] = []
    before_training(lambda trainer: seen.append(rendered(trainer.processing_class)))
    assert main(["train", *SFT, "trainer.args.chat_template_path=mine.jinja"]) == 0
    assert seen == ["<user>1+1=<bot>"]
    frozen = Experiment.model_validate(prepare([*SFT, "model.chat_template=mine.jinja"]).experiment.model_dump())
    by_path = prepare([*SFT, "trainer.args.chat_template_path=mine.jinja"]).experiment
    assert (by_path.model, by_path.trainer) == (frozen.model, frozen.trainer)


@pytest.mark.parametrize(
    ("words", "where"),
    [
        (["model.chat_template=gone.jinja"], "model.chat_template (command line)"),
        (["model.chat_template=."], "model.chat_template (command line)"),
        (["model.chat_template=latin1.jinja"], "model.chat_template (command line)"),
        (["model.chat_template='{{ messages'"], "model.chat_template (command line)"),
        (
            ["model.chat_template=mine.jinja", "trainer.args.chat_template_path=mine.jinja"],
            "trainer.args.chat_template_path (command line)",
        ),
    ],
)
def test_what_cannot_be_a_template(template: Path, words: list[str], where: str) -> None:
    template.with_name("latin1.jinja").write_bytes("{{ 'é' }}".encode("latin-1"))
    with pytest.raises(UserError) as caught:
        prepare([*SFT, *words])
    assert not isinstance(caught.value, Problems)
    assert caught.value.where == where
    assert isinstance(caught.value, ModelError) == (len(words) == 1)
