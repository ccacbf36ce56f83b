"""Models and data sets that are missing on the hub, and weights that are missing or cut, are reported before a run."""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import datasets
import huggingface_hub
import numpy
import pytest
from safetensors.numpy import load_file, save_file

from rlhf_cli.data.loading import load_split
from rlhf_cli.data.source import DataSource
from rlhf_cli.errors import ModelError, Problems, UserError
from rlhf_cli.evaluation.score_completions import policy_tokenizer
from rlhf_cli.evaluation.targets import file_source, model_to_sample
from rlhf_cli.plan.prepare import prepare
from rlhf_cli.services import hub_lookup
from rlhf_cli.services.hub_lookup import HubAnswer, HubQuestion
from tests.support.model_copies import model_copy
from tests.support.planning import Refused, planned

MODEL = ("exp=quickstart", "launch=cpu", "model=local", "model.path=model")
WEIGHTS = "model.safetensors"


def test_no_weights(place: Path, refused: Refused) -> None:
    model_copy(place / "model", without=(WEIGHTS,))
    error = refused(*MODEL)
    assert error.where == "model.path (command line)"
    assert "config.json" in str(error.got)


def test_a_folder_has_no_revisions(place: Path, refused: Refused) -> None:
    model_copy(place / "model")
    assert refused(*MODEL, "model.revision=v2").hint == "model.revision=null"


def test_a_truncated_file(place: Path, refused: Refused) -> None:
    file = model_copy(place / "model") / WEIGHTS
    file.write_bytes(file.read_bytes()[:-5])
    error = refused(*MODEL)
    size = file.stat().st_size
    assert f"{WEIGHTS} has {size} bytes, but its header says {size + 5}" in str(error.got)


def test_a_part_that_the_index_names_is_missing(place: Path, refused: Refused) -> None:
    folder = model_copy(place / "model")
    index = {"weight_map": {"a": WEIGHTS, "b": "gone-2.safetensors"}}
    (folder / f"{WEIGHTS}.index.json").write_text(json.dumps(index))
    assert "1 of 2 parts are missing, the first is gone-2.safetensors" in str(refused(*MODEL).got)
    (folder / f"{WEIGHTS}.index.json").write_text("{}")
    assert f"{WEIGHTS}.index.json is not an index" in str(refused(*MODEL).got)


class TestBaseOfAnAdapter:
    """The policy, a critic and a reward model may be adapters, which need their base."""

    @pytest.fixture
    def adapter(self, place: Path) -> Path:
        folder = model_copy(place / "model", without=("config.json", WEIGHTS))
        config = {"base_model_name_or_path": str(place / "base"), "peft_type": "LORA", "task_type": "CAUSAL_LM"}
        (folder / "adapter_config.json").write_text(json.dumps(config))
        shutil.copy(model_copy(place / "whole") / WEIGHTS, folder / "adapter_model.safetensors")
        return folder

    def test_it_is_gone(self, adapter: Path, refused: Refused) -> None:
        error = refused(*MODEL)
        assert str(error.where).startswith("model.path (command line): the base that")

    def test_it_was_cut(self, place: Path, adapter: Path, refused: Refused) -> None:
        file = model_copy(place / "base") / WEIGHTS
        assert planned(*MODEL).notices == (), "the control"
        file.write_bytes(file.read_bytes()[:-5])
        error = refused(*MODEL)
        assert error.where == "model.path (command line)"
        assert str(place / "base") in str(error.got)


@pytest.mark.fault(46)
@pytest.mark.parametrize("model", [MODEL, ("exp=quickstart", "launch=cpu")], ids=["folder", "embedded"])
class TestAdapters:
    def test_target_modules_without_a_layer(self, place: Path, refused: Refused, model: tuple[str, ...]) -> None:
        model_copy(place / "model")
        error = refused(*model, "model.lora.target_modules=[q_prj,v_prj]")
        assert error.where == "model.lora.target_modules (command line)"
        assert error.got == "q_prj, v_prj"
        assert "all-linear, or some of" in str(error.expected)
        assert error.hint == "model.lora.target_modules='[q_proj,v_proj]'"

    def test_modules_to_save_that_the_model_does_not_have(
        self, place: Path, refused: Refused, model: tuple[str, ...]
    ) -> None:
        """peft says nothing and trains none of them. lm_head is tied to the embedding and so in no file."""
        model_copy(place / "model")
        error = refused(*model, "model.lora.modules_to_save=[lm_head,embed_tokns]")
        assert error.where == "model.lora.modules_to_save (command line)"
        assert error.hint == "model.lora.modules_to_save='[lm_head,embed_tokens]'"
        assert planned(*model, "model.lora.modules_to_save=[lm_head,embed_tokens,mlp,model.norm]").notices == ()
        assert planned(*model, "model.lora.modules_to_save=[classifier,whole.model.norm]").notices == ()
        for word, hint in (
            ("exclude_modules=[q_prj]", "exclude_modules='[q_proj]'"),
            ("target_parameters=[q_proj.wieght]", "target_parameters='[q_proj.weight]'"),
            ("rank_pattern={q_prj: 4}", "'~model.lora.rank_pattern'"),
        ):
            error = refused(*model, f"model.lora.{word}")
            assert error.where == f"model.lora.{word.partition('=')[0]} (command line)"
            assert str(error.hint).removeprefix("model.lora.") == hint
            assert planned(*model, f"model.lora.{word.replace('prj', 'proj').replace('wieght', 'weight')}")

    @pytest.mark.parametrize("targets", ["all-linear", "'.*q_proj'", "[layers.0.self_attn.q_proj]"])
    def test_negative_control_what_peft_finds(self, place: Path, model: tuple[str, ...], targets: str) -> None:
        model_copy(place / "model")
        assert planned(*model, f"model.lora.target_modules={targets}").notices == ()


def test_layers_beside_experts_are_not_looked_for(place: Path) -> None:
    """Experts have other names in memory than in their files."""
    weights = model_copy(place / "model") / WEIGHTS
    expert = {"model.layers.0.mlp.experts.0.up_proj.weight": numpy.zeros((2, 2), dtype=numpy.float32)}
    save_file({**load_file(weights), **expert}, weights, metadata={"format": "pt"})
    assert planned(*MODEL, "model.lora.target_modules=[q_prj]").notices == ()


_OPTIM = "trainer.args.optim"


class TestPackages:
    @pytest.fixture(autouse=True)
    def nothing_is_installed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        real = importlib.util.find_spec
        ours = (
            "bitsandbytes",
            "torchao",
            "liger_kernel",
            "peft",
            "math_verify",
            "reasoning_gym",
            "deepspeed",
            "mlflow",
        )
        monkeypatch.setattr(
            importlib.util, "find_spec", lambda name, *more: None if name in ours else real(name, *more)
        )

    @pytest.mark.parametrize(
        ("words", "key", "hint"),
        [
            (f"{_OPTIM}=paged_adamw_8bit", _OPTIM, f"pip install bitsandbytes, or {_OPTIM}=adamw_torch"),
            (f"{_OPTIM}=adamw_torch_8bit", _OPTIM, f"pip install torchao, or {_OPTIM}=adamw_torch"),
            (f"{_OPTIM}=lomo", _OPTIM, f"pip install lomo_optim, or {_OPTIM}=adamw_torch"),
            (f"{_OPTIM}=stable_adamw", _OPTIM, f"pip install torch-optimi, or {_OPTIM}=adamw_torch"),
            ("model.lora.r=8", "model.lora", "pip install peft, or model.lora=null"),
            (
                *("model=local model.path=model model.quantize=4bit model.lora.r=8", "model.quantize"),
                "pip install bitsandbytes, or model.quantize=null",
            ),
            ("launch.strategy=zero2", "launch.strategy", "pip install deepspeed, or launch.strategy=ddp"),
            ("track=mlflow", "track.tracker", "pip install 'rlhf-cli[mlflow]', or track=wandb_offline, or track=none"),
            (
                *("trainer.args.use_liger_kernel=true", "trainer.args.use_liger_kernel"),
                "trainer.args.use_liger_kernel=false",
            ),
            ("reward@rewards.maths=trl_accuracy", "rewards.maths.fn", "pip install 'rlhf-cli[math]'"),
            ("reward@rewards.task=reasoning_gym", "rewards.task.fn", "pip install reasoning-gym=="),
        ],
    )
    def test_a_package_that_is_not_installed(self, place: Path, words: str, key: str, hint: str) -> None:
        model_copy(place / "model")
        (place / "rows.jsonl").write_text('{"prompt": "1+1=", "a": 1, "b": 1, "solution": "2", "entry": "{}"}\n' * 9)
        with pytest.raises(UserError) as caught:
            planned("exp=quickstart", "launch=cpu", "data=file", "data.path=rows.jsonl", *words.split())
        problems = caught.value.problems if isinstance(caught.value, Problems) else [caught.value]
        (found,) = [str(problem.hint) for problem in problems if str(problem.where).startswith(key)]
        assert found == hint or (hint.endswith("==") and found.startswith(hint))


QUICK = ("exp=quickstart", "launch=cpu")


def hub_says(monkeypatch: pytest.MonkeyPatch, *answers: HubAnswer, **by_name: HubAnswer) -> list[HubQuestion]:
    """Let the hub give one answer to all questions, or one per repository name. Returns the questions."""
    questions: list[HubQuestion] = []

    def answer(question: HubQuestion, _: float) -> HubAnswer:
        questions.append(question)
        return by_name.get(question.name.partition("/")[2], answers[0] if answers else HubAnswer("there"))

    monkeypatch.setattr(hub_lookup, "_asked", answer)
    return questions


@pytest.mark.fault(45)
@pytest.mark.parametrize(
    ("answer", "key", "got", "hint"),
    [
        (HubAnswer("missing"), "path", "looked for /", "model.path=FOLDER"),
        (HubAnswer("gated"), "path", "no token", "hf auth login"),
        (HubAnswer("unreachable", "no route"), "path", "no route", "hf download org/name"),
        (HubAnswer("unreachable", "slow", is_silence=True), "path", "slow", "HF_HUB_ETAG_TIMEOUT=20"),
        (HubAnswer("no_revision"), "revision", "v9", "'~model.revision'"),
    ],
)
def test_a_model(monkeypatch, refused: Refused, answer: HubAnswer, key: str, got: str, hint: str) -> None:
    hub_says(monkeypatch, answer)
    error = refused(*QUICK, "model=local", "model.path=org/name", "model.revision=v9")
    assert isinstance(error, ModelError)
    assert str(error.where).startswith(f"model.{key}")
    assert got in str(error.got)
    assert hint in f"{error.hint} {error.advice}"


def test_all_missing_repositories_are_reported_together(monkeypatch: pytest.MonkeyPatch) -> None:
    questions = hub_says(monkeypatch, HubAnswer("missing"), good=HubAnswer("there"))
    with pytest.raises(Problems) as caught:
        planned(
            *(*QUICK, "model=local", "model.path=org/good", "model.tokenizer=org/words", "+rewards.judge.model=org/j"),
            *("data.eval.path=org/rows", "trainer.args.eval_strategy=steps", "trainer.args.eval_steps=60"),
        )
    keys = [str(problem.where).partition(" ")[0] for problem in caught.value.problems]
    assert keys == ["model.tokenizer", "rewards.judge.model", "data.eval.path"]
    assert len(questions) == 4


@pytest.mark.parametrize(
    ("act", "where"),
    [
        (lambda: file_source({}, "nope"), "--data"),
        (lambda: model_to_sample("org/nope", None), "rlhf generate"),
        (lambda: load_split([DataSource(path="nope")], seed=0), "data.path"),
        (
            lambda: policy_tokenizer(
                prepare(["+exp=quickstart", "model=local", "model.path=org/nope"]).experiment, wanted_by="a reward"
            ),
            "model.path",
        ),
    ],
    ids=["eval", "generate", "rows", "tokenizer"],
)
def test_no_library_retries_for_a_minute(
    monkeypatch: pytest.MonkeyPatch, act: Callable[[], object], where: str
) -> None:
    """Without a network `datasets` and transformers ask six times, with pauses of up to 8 s."""
    hub_says(monkeypatch, HubAnswer("unreachable", "no route"))

    def asked(*_: object, **__: object) -> None:
        raise AssertionError("a library asks the hub")

    monkeypatch.setattr(datasets, "load_dataset", asked)
    monkeypatch.setattr(huggingface_hub.file_download, "hf_hub_download", asked)
    with pytest.raises(UserError) as caught:
        act()
    assert (caught.value.where, "no route" in str(caught.value.got)) == (where, True)
