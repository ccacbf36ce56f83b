"""Every loader passes dtype, revision and trust to transformers.

The test replaces no function: the model has its own class beside its weights, so it does not load without trust, and
the hub is its cache on disk, in which a branch has other weights than the default one.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import constants
from peft import LoraConfig, get_peft_model
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
)

from rlhf_cli.errors import ModelError
from rlhf_cli.evaluation import evaluation_run
from rlhf_cli.evaluation.evaluation_run import load_policy
from rlhf_cli.models.byte_tokenizer import byte_tokenizer
from rlhf_cli.models.cache import merged_model
from rlhf_cli.models.model_folders import loaders_of, require_model
from rlhf_cli.models.policy_model import PolicyModel
from rlhf_cli.models.reward_model_scorer import RewardModelScorer
from rlhf_cli.models.scalar_heads import build_critic, check_tokens, head_names, load_reward_model
from rlhf_cli.plan.prepare import prepare
from rlhf_cli.project.exported_folder import SourceModel, write_merged_weights
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.trainers.assemble.algorithm import algorithm_of
from rlhf_cli.trainers.assemble.policy_loading import policy_path, tokenizer_of
from rlhf_cli.trainers.assemble.ppo_setup import ppo_setup
from tests.project.finished_runs import finished_run
from tests.support.model_copies import model_copy
from tests.support.tolerances import assert_close

SHAPE = dict.fromkeys(("hidden_size", "intermediate_size"), 16) | {"num_hidden_layers": 1, "num_attention_heads": 2}
CODE = """\
from transformers import AutoModel, LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification
from transformers import LlamaForTokenClassification, LlamaModel, PreTrainedTokenizerFast

class OwnConfig(LlamaConfig):
    model_type = "own"

class OwnModel(LlamaModel):
    config_class = OwnConfig

AutoModel.register(OwnConfig, OwnModel, exist_ok=True)

class OwnForCausalLM(LlamaForCausalLM):
    config_class = OwnConfig

class OwnForSequenceClassification(LlamaForSequenceClassification):
    config_class = OwnConfig

class OwnForTokenClassification(LlamaForTokenClassification):
    config_class = OwnConfig

class OwnTokenizer(PreTrainedTokenizerFast):
    pass
"""
REWARD = "reward@rewards.short=brevity"
CLASSES = ("ForCausalLM", "ForSequenceClassification", "ForTokenClassification")


def change(file: Path, **values: object) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def saved(folder: Path, kind: type, seed: int = 0) -> Path:
    """Save a tiny Llama of this kind whose code lies beside its weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config = LlamaConfig(**SHAPE, vocab_size=258, num_labels=1, pad_token_id=0)
        kind(config).save_pretrained(folder)
    byte_tokenizer(64).save_pretrained(folder)
    (folder / "own.py").write_text(CODE)
    classes = {f"AutoModel{name}": f"own.Own{name}" for name in CLASSES}
    change(folder / "config.json", model_type="own", auto_map={"AutoConfig": "own.OwnConfig", **classes})
    change(
        folder / "tokenizer_config.json",
        tokenizer_class="OwnTokenizer",
        auto_map={"AutoTokenizer": [None, "own.OwnTokenizer"]},
    )
    return folder


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return a language model, a reward model, and an adapter of the language model, all with code of their own."""
    place = tmp_path_factory.mktemp("models")
    policy = saved(place / "policy", LlamaForCausalLM)
    loaded: Any = AutoModelForCausalLM.from_pretrained(policy, trust_remote_code=True)
    adapted = get_peft_model(loaded, LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["q_proj"]))
    adapted.save_pretrained(place / "adapter")
    change(place / "adapter" / "adapter_config.json", base_model_name_or_path=str(policy))
    return {
        "policy": policy,
        "reward": saved(place / "reward", LlamaForSequenceClassification),
        "adapter": place / "adapter",
    }


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RLHF_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def source(folder: Path, **trust: bool) -> SourceModel:
    return SourceModel(RunFolder(folder), folder, "policy", 1, **trust)


def configured(path: Path | str, *, trusted: bool, words: tuple[str, ...] = ()) -> Any:
    trust = ["model.trust_remote_code=true"] if trusted else []
    return prepare(
        ["trainer=grpo", "model=local", f"model.path={path}", "data=toy_sums", REWARD, *trust, *words]
    ).experiment


TRUSTED = {"trust_remote_code": True}


def critic(init: str, models: Mapping[str, Path | str], **named: Any) -> Any:
    return build_critic(init, str(models["policy"]), **{"dtype": "auto", "dropout": 0.0, **named})


def test_code_beside_the_weights_runs_if_it_is_trusted_and_only_then(models: dict[str, Path], tmp_path: Path) -> None:
    policy, reward, adapter = (str(models[name]) for name in ("policy", "reward", "adapter"))
    loaders: list[Callable[..., object]] = [
        lambda **trust: PolicyModel(models["policy"], **trust),
        *(lambda load=load, **trust: load(reward, **trust) for load in (load_reward_model, RewardModelScorer)),
        *(lambda init=init, **trust: critic(init, models, **trust) for init in ("policy", reward, policy)),
        *(lambda load=load, **trust: load(policy, **trust) for load in (head_names, loaders_of)),
        lambda **trust: merged_model(adapter, **trust),
        lambda **trust: write_merged_weights(source(models["adapter"], **trust), policy, tmp_path / str(trust)),
    ]
    for load in loaders:
        with pytest.raises((ModelError, ValueError, OSError)):
            load()
        load(**TRUSTED)


def test_an_experiment_hands_on_trust_dtype_device_and_the_way_to_generate(
    models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation_run, "device_of", lambda experiment: "meta")  # for a GPU
    words = ("model.dtype=bfloat16", "trainer.generation=plain")
    policy = load_policy(models["policy"], configured(models["policy"], trusted=True, words=words))
    assert policy._generating.is_plain
    assert not PolicyModel(models["policy"], **TRUSTED)._generating.is_plain
    assert type(policy._model).__name__ == "OwnForCausalLM"
    assert type(policy.tokenizer).__name__ == "OwnTokenizer"
    assert (policy._model.dtype, policy._model.device.type) == (torch.bfloat16, "meta")


def test_a_model_that_is_named_is_read_with_the_tokenizer_that_is_named(tmp_path: Path) -> None:
    """A base model without an end of its own cannot pad; a run's own model was saved with its tokenizer."""
    bare, whole = model_copy(tmp_path / "bare"), model_copy(tmp_path / "whole")
    change(bare / "tokenizer_config.json", eos_token=None, pad_token=None)
    with pytest.raises(ModelError) as caught:
        load_policy(bare, configured(bare, trusted=False))
    assert (caught.value.where, caught.value.hint) == ("model.path", "model.tokenizer=FOLDER_OR_HUB_ID")
    asked = configured(bare, trusted=False, words=(f"model.tokenizer={whole}",))
    assert load_policy(bare, asked).tokenizer.eos_token == "<eos>"
    asked = configured(bare, trusted=False, words=(f"model.tokenizer={bare}",))
    assert load_policy(whole, asked).tokenizer.eos_token == "<eos>"


def dtype_of(model: Any) -> torch.dtype:
    return next(weight for name, weight in model.named_parameters() if "embed_tokens" in name).dtype


def test_weights_have_the_dtype_that_was_asked_for(models: dict[str, Path]) -> None:
    """They are stored in float32; `auto` keeps that."""
    for dtype, expected in {"bfloat16": torch.bfloat16, "float16": torch.float16, "auto": torch.float32}.items():
        assert PolicyModel(models["policy"], dtype=dtype, trust_remote_code=True)._model.dtype == expected
        assert dtype_of(load_reward_model(str(models["reward"]), dtype=dtype, trust_remote_code=True)[0]) == expected
        for init in ("policy", str(models["reward"]), str(models["policy"])):
            assert dtype_of(critic(init, models, dtype=dtype, **TRUSTED)) == expected
        asked = configured(models["adapter"], trusted=True, words=(f"model.dtype={dtype}",))
        folder = policy_path(asked, print)
        assert folder == merged_model(str(models["adapter"]), dtype=dtype, trust_remote_code=True)
        stored = AutoModelForCausalLM.from_pretrained(folder, dtype="auto", trust_remote_code=True)
        assert stored.dtype == expected
        assert (Path(folder) / "tokenizer.json").is_file()


@pytest.mark.filterwarnings("ignore::UserWarning")  # peft's, of tied embeddings
@pytest.mark.parametrize("target", ["embed_tokens", "q_proj"])
def test_a_merged_adapter_computes_what_it_computed_apart(target: str, tmp_path: Path) -> None:
    """The embedded model's embeddings are tied: a change of its input embedding must not change its output."""
    model: Any = AutoModelForCausalLM.from_pretrained(model_copy(tmp_path / "base"))
    config = LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=[target], init_lora_weights=False)
    adapted = get_peft_model(model, config).eval()
    adapted.save_pretrained(tmp_path / "adapter")
    write_merged_weights(source(tmp_path / "adapter"), str(tmp_path / "base"), tmp_path / "exported")
    ids = torch.arange(1, 9)[None]
    for folder in (merged_model(str(tmp_path / "adapter")), tmp_path / "exported"):
        whole = AutoModelForCausalLM.from_pretrained(folder)
        assert_close(whole(ids).logits, adapted(ids).logits)
        assert whole.config.tie_word_embeddings is (target == "q_proj")


@pytest.fixture
def hub(models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the name of a model whose default branch cannot be read; `good` is the policy, `scores` a reward model."""
    place = tmp_path / "hub" / "models--team--own"
    (place / "refs").mkdir(parents=True)
    for number, (branch, model) in enumerate({"main": "policy", "good": "policy", "scores": "reward"}.items()):
        snapshot = shutil.copytree(models[model], place / "snapshots" / (str(number) * 40))
        (place / "refs" / branch).write_text(str(number) * 40)
        for file in ("config.json", "tokenizer_config.json", "tokenizer.json") if branch == "main" else ():
            (snapshot / file).write_text("{}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return "team/own"


REVISED: dict[str, Callable[[str, str | None], object]] = {
    "required": lambda name, revision: require_model(name, where="model.path", revision=revision, **TRUSTED),
    "heads": lambda name, revision: head_names(name, revision=revision, **TRUSTED),
    "critic of the policy": lambda name, revision: critic("policy", {"policy": name}, revision=revision, **TRUSTED),
    "policy of an evaluation": lambda name, revision: load_policy(Path(name), revised(name, revision)),
    "reward model": lambda name, revision: RewardModelScorer(name, revision=revision and "scores", **TRUSTED),
    "tokenizer": lambda name, revision: tokenizer_of(revised(name, revision), name),
    "critic of PPO": lambda name, revision: critic_of_ppo(name, revision),
    "tokens of another critic": lambda name, revision: critic_of_ppo(name, revision, "critic.init=critic"),
}


def critic_of_ppo(name: str, revision: str | None, *words: str) -> object:
    experiment = revised(name, revision, "trainer=ppo", *words)
    return ppo_setup(experiment, name, algorithm_of(experiment))


def revised(name: str, revision: str | None, *words: str) -> Any:
    return configured(name, trusted=True, words=(*words, *([f"model.revision={revision}"] if revision else [])))


@pytest.mark.parametrize("name", REVISED)
def test_the_revision_that_was_asked_for_is_read(
    name: str, hub: str, models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("critic").symlink_to(models["reward"])
    REVISED[name](hub, "good")
    with pytest.raises((ModelError, ValueError, OSError, KeyError)):
        REVISED[name](hub, None)


BELOW: dict[str, tuple[str, Callable[[str], object]]] = {
    "policy": ("CAUSAL_LM", lambda path: PolicyModel(Path(path), tokenizer=f"{path}/../own", **TRUSTED)),
    "merged": ("CAUSAL_LM", lambda path: merged_model(path, **TRUSTED)),
    "exported": (
        "CAUSAL_LM",
        lambda path: write_merged_weights(source(Path(path), **TRUSTED), "team/own", Path("out")),
    ),
    "reward model": ("SEQ_CLS", lambda path: load_reward_model(path, **TRUSTED)),
    "critic of a reward model": ("SEQ_CLS", lambda path: critic(path, {"policy": ""}, **TRUSTED)),
    "critic": ("TOKEN_CLS", lambda path: critic(path, {"policy": ""}, **TRUSTED)),
}
KINDS = {
    "CAUSAL_LM": ("good", AutoModelForCausalLM),
    "SEQ_CLS": ("scores", AutoModelForSequenceClassification),
    "TOKEN_CLS": ("good", AutoModelForTokenClassification),
}


@pytest.mark.parametrize("name", BELOW)
def test_the_base_of_an_adapter_is_read_at_the_revision_that_it_was_trained_on(
    name: str, hub: str, models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The adapter has no tokenizer: it is the base's."""
    monkeypatch.chdir(tmp_path)
    Path("own").symlink_to(models["policy"])
    finished_run(tmp_path / "run", None)
    (task, load), adapter = BELOW[name], tmp_path / "adapter"
    revision, kind = KINDS[task]
    loaded: Any = kind.from_pretrained(hub, revision=revision, num_labels=1, **TRUSTED)
    config = LoraConfig(task_type=task, r=2, target_modules=["q_proj"], revision=revision)
    get_peft_model(loaded, config).save_pretrained(adapter, save_embedding_layers=False)
    load(str(adapter))
    change(adapter / "adapter_config.json", revision=None)
    with pytest.raises((ModelError, ValueError, OSError, KeyError)):
        load(str(adapter))


def test_a_change_of_what_a_merged_model_has_of_its_base_merges_anew(tmp_path: Path) -> None:
    base, adapter = model_copy(tmp_path / "base"), tmp_path / "adapter"
    model: Any = AutoModelForCausalLM.from_pretrained(base)
    get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", r=2)).save_pretrained(adapter)
    merged = [merged_model(str(adapter))]
    change(base / "generation_config.json", eos_token_id=[1, 7])
    merged.append(merged_model(str(adapter)))
    (base / "chat_template.jinja").write_text("another")
    merged += [merged_model(str(adapter)) for _ in range(2)]
    assert GenerationConfig.from_pretrained(merged[1]).eos_token_id == [1, 7]
    assert AutoTokenizer.from_pretrained(merged[2]).chat_template == "another"
    assert (len({*merged}), merged[3]) == (3, merged[2])


def test_tokens_are_compared_by_tokenizers_that_may_run_code(models: dict[str, Path], hub: str, tmp_path: Path) -> None:
    (tmp_path / "hub" / "models--team--own" / "refs" / "main").write_text("1" * 40)
    built, policy = critic("policy", models, **TRUSTED), str(models["policy"])
    for here, there in ((hub, policy), (policy, hub), (hub, hub)):
        check_tokens(built, here, there, trust_remote_code=True)
    with pytest.raises(ValueError, match="trust_remote_code"):
        check_tokens(built, policy, hub)


def test_answers_are_padded_with_the_end_where_nothing_else_is_there_and_read_without_it(
    models: dict[str, Path], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(models["policy"], tmp_path / "policy"))
    change(folder / "tokenizer_config.json", pad_token=None)
    policy = PolicyModel(folder, trust_remote_code=True)
    assert policy.tokenizer.pad_token == policy.tokenizer.eos_token
    ids = policy.tokenizer("2", add_special_tokens=False).input_ids
    assert policy.decode([*ids, policy.tokenizer.eos_token_id]) == "2"
    assert not policy._model.training
