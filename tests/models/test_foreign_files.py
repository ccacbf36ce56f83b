"""An error names a hostile or damaged file of a model or checkpoint, and its code is not executed.

Executed code would leave a file behind.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

from rlhf_cli.cli import main
from rlhf_cli.errors import ModelError
from rlhf_cli.models.byte_tokenizer import byte_tokenizer
from rlhf_cli.models.foreign_files import naming_foreign_files
from rlhf_cli.runs.checkpoint_folders import write_manifest
from tests.project.finished_runs import random_model
from tests.support.small_runs import SMALL

LEAVES = "executed"
"""The file that foreign code would leave in the current folder."""
OUT_OF_SANDBOX = "{{ ''.__class__.__mro__[1].__subclasses__() }}"


class Leaving:
    """An object that leaves a file when it is unpickled."""

    def __reduce__(self) -> tuple[object, ...]:
        return os.system, (f"touch {LEAVES}",)


def change(file: Path, **changes: object) -> None:
    content = json.loads(file.read_text())
    file.write_text(json.dumps(content | changes))


def with_code(file: str, **named: object) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        (folder / "own.py").write_text(f"open({LEAVES!r}, 'w')\n")
        change(folder / file, **named)

    return spoil


OF_MODEL = with_code("config.json", model_type="own", auto_map={"AutoConfig": "own.Config", "AutoModel": "own.Model"})
AUTO_TOKENIZER = {"AutoTokenizer": ["own.Own", None]}
OF_TOKENIZER = with_code("tokenizer_config.json", tokenizer_class="Own", auto_map=AUTO_TOKENIZER)


def with_pickle(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"model.embed_tokens.weight": Leaving()}, folder / "pytorch_model.bin")


def with_template(text: str) -> Callable[[Path], None]:
    return lambda folder: (folder / "chat_template.jinja").write_text(text) and None


@pytest.fixture
def model(workplace: Path) -> Path:
    folder = workplace / "given"
    random_model("CAUSAL_LM").save_pretrained(folder)
    byte_tokenizer(context_tokens=64).save_pretrained(folder)
    return folder


CHAT = ["data=file", "data.path=chat.jsonl", "~data.args", "~rewards.correct", "~rewards.format"]
OF_FOLDER = [word for word in SMALL if not word.startswith("model.")]


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (OF_MODEL, "model.trust_remote_code=true"),
        (OF_TOKENIZER, "model.trust_remote_code=true"),
        (with_pickle, "pytorch_model.bin"),
        (lambda folder: change(folder / "config.json", hidden_act="sillu"), "KeyError: 'sillu'"),
        (with_template(OUT_OF_SANDBOX), "SecurityError"),
        (with_template("{% for message in messages %}{{ message.content"), "TemplateSyntaxError"),
        (with_template("{% for n in range(10 ** 9) %}{% endfor %}"), "Range too big"),
    ],
    ids=["code", "tokenizer", "pickle", "activation", "sandbox", "syntax", "range"],
)
def test_an_unusual_model_folder(spoil, says: str, model: Path, workplace: Path, capsys) -> None:
    before = (model / "chat_template.jinja").read_text()
    spoil(model)
    rows = [{"prompt": [{"role": "user", "content": f"{n}+1="}], "a": n, "b": 1} for n in range(16)]
    (workplace / "chat.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    chat = CHAT if (model / "chat_template.jinja").read_text() != before else []
    code = main(["train", *OF_FOLDER, *chat, "~model.build", f"model.path={model}"])
    printed = capsys.readouterr()
    assert code == 2, printed
    assert "Traceback" not in printed.out + printed.err
    place = ("row 1", "model.chat_template", "got:") if chat else ("model.path", str(model))
    for part in (says, *place, "expected:"):
        assert part in printed.err, part
    assert not (workplace / LEAVES).exists()


def test_a_template_that_fails_is_the_given_one_or_the_model_s(model: Path) -> None:
    """A given template belongs to the experiment's model: that of a teacher, say, is the teacher's own."""
    with_template("{{ persona.name }}")(model)
    tokenizer, own = AutoTokenizer.from_pretrained(model), f"model.path: {model}"
    for path, given, where in (
        *((str(model), None, own), ("other", "own.jinja", own)),
        (str(model), "own.jinja", "model.chat_template"),
    ):
        paths = {"critic.init": "another", "model.path": path, "model.chat_template": given}
        with pytest.raises(ModelError) as caught, naming_foreign_files(paths):
            tokenizer.apply_chat_template([{"role": "user", "content": "1+1="}])
        assert caught.value.where == where
        assert "trainer.args.chat_template_kwargs.persona=VALUE, or model.chat_template=" in str(caught.value.hint)


def test_negative_control_torch_load_executes_the_pickle(model: Path, workplace: Path) -> None:
    with_pickle(model)
    torch.load(model / "pytorch_model.bin", weights_only=False)
    assert (workplace / LEAVES).exists()


@pytest.mark.whole
def test_a_checkpoint_that_was_changed_together_with_its_manifest(train, workplace: Path, capsys) -> None:
    code, folder = train("trainer.args.lr_scheduler_type=constant")
    assert code == 0
    checkpoint, whole = folder.checkpoints / "checkpoint-3", workplace / "whole"
    shutil.copytree(checkpoint, whole)
    damaged = {"state": {}, "param_groups": [{}, {}, {}]}
    for name, content, told in (
        *((name, Leaving(), name) for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth")),
        *(("optimizer.pt", damaged, "parameter group"), ("trainer_state.json", None, "trainer_state.json")),
    ):
        shutil.rmtree(checkpoint)
        shutil.copytree(whole, checkpoint)
        (checkpoint / "manifest.json").unlink()
        if content is None:
            (checkpoint / name).write_text('{"global_step": ')
        else:
            torch.save(content, checkpoint / name)
        write_manifest(checkpoint)
        capsys.readouterr()
        assert main(["resume", str(folder.path), "trainer.args.max_steps=4"]) == 2
        printed = capsys.readouterr()
        assert "Traceback" not in printed.out + printed.err
        for part in ("checkpoint-3", told, "got:", "expected:", "advice:"):
            assert part in printed.err, part
        assert not (workplace / LEAVES).exists()
