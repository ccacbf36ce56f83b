"""Models and data sets that are missing on the hub, and weights that are missing or cut, are reported before a run.

So are models that a critic cannot start from.
"""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import huggingface_hub
import numpy
import pytest
from safetensors.numpy import load_file, save_file

from rlhf_cli.data.loading import load_split
from rlhf_cli.data.source import DataSource
from rlhf_cli.errors import DataError, ModelError, UserError
from rlhf_cli.evaluation.score_completions import policy_tokenizer
from rlhf_cli.evaluation.targets import model_to_sample, renames_in
from rlhf_cli.plan.checks.facts import Report
from rlhf_cli.plan.checks.machine_checks import hub_problems, require_on_hub, upload_problems
from rlhf_cli.plan.checks.model_checks import adapter_problems, config_problems, weight_problems
from rlhf_cli.plan.prepare import prepare
from rlhf_cli.plan.workload import checkpoint_space
from rlhf_cli.services import hub_lookup
from rlhf_cli.services.hub_lookup import HubAnswer, HubQuestion
from tests.support import planning
from tests.support.model_copies import EMPTY_WEIGHTS, model_copy, tokenizer_json
from tests.support.planning import Refused, Write, planned, subject_of, told

MODEL = ("exp=quickstart", "launch=cpu", "model=local", "model.path=model")
WEIGHTS = "model.safetensors"
TARGETS = "model.lora.target_modules"


def damage(*words: str) -> list[tuple[object, ...]]:
    """The key, what it got and expected of each model whose weights are not whole."""
    subject = subject_of(*words)
    found = told(weight_problems(subject))
    assert all(advice for *_, advice in found)
    return [(key, *str(got).partition(": ")[::2], expected) for key, got, expected, _ in found]


def test_weights_that_are_missing_or_cut(place: Path) -> None:
    file, whole = model_copy(place / "model") / WEIGHTS, "every file of the index, as long as its header says"
    data = file.read_bytes()
    assert damage(*MODEL) == []
    file.write_bytes(data[:-5])
    says = f"{WEIGHTS} has {len(data) - 5} bytes, but its header says {len(data)}"
    assert damage(*MODEL) == [("model.path", "model", says, whole)]
    for index, says in (
        ({"weight_map": {"a": WEIGHTS, "b": "gone-2.safetensors"}}, "1 of 2 parts are missing, the first is gone-2"),
        ({}, f"{WEIGHTS}.index.json is not an index"),
    ):
        (place / "model" / f"{WEIGHTS}.index.json").write_text(json.dumps(index))
        ((key, folder, got, expected),) = damage(*MODEL)
        assert (key, folder, got[: len(says)], expected) == ("model.path", "model", says, whole)
    (place / "model" / f"{WEIGHTS}.index.json").unlink()
    parts = file.rename(file.with_name("model-00001-of-00002.safetensors"))
    ((_, _, got, expected),) = damage(*MODEL)
    assert (got.startswith(f"no {WEIGHTS} and no {WEIGHTS}.index.json"), expected) == (True, whole)
    parts.unlink()
    file.symlink_to("gone")
    assert damage(*MODEL) == [("model.path", "model", f"{WEIGHTS} cannot be read: No such file or directory", whole)]
    file.unlink()
    (place / "bare").mkdir()
    for name in ("z1", "z2", "z3"):
        (place / "model" / name).write_text("")
    listed = ", ".join(sorted(each.name for each in (place / "model").iterdir())[:6])
    words = ("exp=quickstart", "launch=cpu", "model=local", "model.path=org/away", "+rewards.a.model=bare")
    missing = ("rewards.b.model", "model", listed, f"{WEIGHTS}, or its parts with their index")
    assert damage(*words, "+rewards.b.model=model") == [missing]
    subject = subject_of(*words, "+rewards.b.model=model")
    for name, command in (
        ("pytorch_model_fsdp_0/__0_0.distcp", "accelerate merge-weights model/pytorch_model_fsdp_0 model"),
        ("zero_to_fp32.py", "python model/zero_to_fp32.py model model"),
    ):
        (place / "model" / name).parent.mkdir(exist_ok=True)
        (place / "model" / name).touch()
        (found,) = told(weight_problems(subject))
        assert str(found[3]).startswith(command)


def test_a_config_that_transformers_refuses(place: Path) -> None:
    """train would find it only when it loads the model: as a traceback, or as an error without the key."""

    def mistakes(*words: str, **changed: object) -> list[tuple[object, ...]]:
        shutil.rmtree(place / "model", ignore_errors=True)
        model_copy(place / "model", config=changed)
        subject = subject_of(*words, "launch=cpu", "model=local", "model.path=model")
        found = told(config_problems(subject))
        return [(key, str(got).removeprefix("model/config.json: ")) for key, got, *_ in found]

    quick = "exp=quickstart"
    assert mistakes(quick) == mistakes(quick, architectures=["T5GemmaForConditionalGeneration"]) == []
    for kind in ("lama", None):
        assert mistakes(quick, model_type=kind) == [("model.path", f"model_type: {kind}")]
    for classes in (["NoSuchForCausalLM"], [], None, "LlamaForCausalLM"):
        assert mistakes(quick, architectures=classes) == [("model.path", f"architectures: {classes}")]
        assert mistakes(quick, architectures=classes, auto_map={"AutoConfig": "mine.Config"}) == []
        # transformers finds a classifier by the model type
        assert mistakes("trainer=reward", "data=file", "data.path=x", architectures=classes) == []
    others = ("llama", ["BertForMaskedLM"]), ("t5", ["T5ForConditionalGeneration"]), ("llama", ["LlamaModel"])
    for kind, classes in others:
        assert mistakes(quick, model_type=kind, architectures=classes) == [("model.path", f"architectures: {classes}")]
    assert mistakes(quick, architectures=["LlamaForSequenceClassification"]) == []  # another check refuses it


def test_code_of_a_models_own(place: Path) -> None:
    """Only the code of reward models can never be trusted."""
    for name in ("model", "other"):
        model_copy(place / name, config={"model_type": "mine", "auto_map": {"AutoConfig": "mine.Config"}})

    def advice(*words: str) -> dict[object, str]:
        subject = subject_of(*MODEL, "+critic.init=other", "trainer=ppo", "+rewards.b.model=other", *words)
        found = told(config_problems(subject))
        return {key: str(typed) for key, _, _, typed in found}

    function = "load it in a function of yours: rewards.b.fn=./rewards.py:FUNCTION"
    trust = dict.fromkeys(("model.path", "critic.init"), "model.trust_remote_code=true")
    assert advice() == trust | {"rewards.b.model": function}
    assert advice("model.trust_remote_code=true") == {"rewards.b.model": function}


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

    def test_it_was_cut(self, place: Path, adapter: Path) -> None:
        file = model_copy(place / "base") / WEIGHTS
        assert damage(*MODEL) == [], "the control"
        file.write_bytes(file.read_bytes()[:-5])
        assert [found[:2] for found in damage(*MODEL)] == [("model.path", str(place / "base"))]

    def test_its_weights_are_what_a_run_writes(self, place: Path, adapter: Path) -> None:
        """The run merges an adapter into its base before it trains."""
        model_copy(place / "base")
        (adapter / "adapter_model.safetensors").write_text(EMPTY_WEIGHTS)
        whole = subject_of(*MODEL, "model.path=base")
        assert checkpoint_space(subject_of(*MODEL), 3) == checkpoint_space(whole, 3) != {}

    @pytest.mark.parametrize(
        ("config", "words", "where"),
        [
            ({"vocab_size": 200}, (), "model.path"),
            ({"max_position_embeddings": 64}, ("trainer.args.max_completion_length=64",), "trainer.args.max_comp"),
        ],
    )
    def test_its_config_is_checked(
        self, place: Path, adapter: Path, refused: Refused, config: dict[str, int], words: tuple[str, ...], where: str
    ) -> None:
        model_copy(place / "base", config=config)
        assert str(refused(*MODEL, *words).where).startswith(where)


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
        assert refused(*model, "model.lora.target_modules=[proj]").got == "proj"  # the end of a name is no name

    def test_modules_to_save_that_the_model_does_not_have(
        self, place: Path, refused: Refused, model: tuple[str, ...]
    ) -> None:
        """peft trains no such weight and does not say so. lm_head is tied to the embedding and so in no file."""
        model_copy(place / "model")
        error = refused(*model, "model.lora.modules_to_save=[lm_head,embed_tokns]")
        assert error.where == "model.lora.modules_to_save (command line)"
        assert error.hint == "model.lora.modules_to_save='[lm_head,embed_tokens]'"
        assert planned(*model, "model.lora.modules_to_save=[lm_head,embed_tokens,mlp,model.norm,model]").notices == ()
        assert planned(*model, "model.lora.modules_to_save=[classifier,whole.model.norm]").notices == ()
        for word, hint in (
            ("exclude_modules=[q_prj]", "exclude_modules='[q_proj]'"),
            ("target_parameters=[q_proj.wieght]", "target_parameters='[q_proj.weight]'"),
            ("rank_pattern={q_prj: 4}", "'~model.lora.rank_pattern'"),
        ):
            error = refused(*model, f"model.lora.{word}")
            assert error.where == f"model.lora.{word.partition('=')[0]} (command line)"
            assert (str(error.got) in word, "proj" in str(error.expected)) == (True, True)
            assert str(error.hint).removeprefix("model.lora.") == hint
            assert planned(*model, f"model.lora.{word.replace('prj', 'proj').replace('wieght', 'weight')}")

    @pytest.mark.parametrize("targets", ["all-linear", "'.*q_proj'", "[layers.0.self_attn.q_proj]"])
    def test_negative_control_what_peft_finds(self, place: Path, model: tuple[str, ...], targets: str) -> None:
        model_copy(place / "model")
        assert planned(*model, f"model.lora.target_modules={targets}").notices == ()


@pytest.mark.parametrize(
    ("targets", "hint"),
    [("[q_proj,lm_head]", "'[q_proj]'"), ("[lm_head]", "all-linear"), ("'.*(q_proj|lm_head)'", "all-linear")],
)
def test_an_adapter_on_a_head_of_its_own(place: Path, refused: Refused, targets: str, hint: str) -> None:
    """TRL's GRPOTrainer refuses it, and so does SFTTrainer, which GKD's extends; ORPO's trains it."""
    weights = model_copy(place / "model", config={"tie_word_embeddings": False}) / WEIGHTS
    tensors = load_file(weights)
    head = {"lm_head.weight": tensors["model.embed_tokens.weight"]}
    save_file({**tensors, **head}, weights, metadata={"format": "pt"})
    error = refused(*MODEL, f"model.lora.target_modules={targets}")
    assert (error.where, error.hint) == (f"{TARGETS} (command line)", f"{TARGETS}={hint}")
    local = ("model=local", "model.path=./model", f"{TARGETS}={targets}")
    for exp, count in (("exp=toy_sft", 1), ("exp=toy_dpo trainer=orpo", 0)):
        subject = subject_of(*exp.split(), "launch=cpu", *local)
        assert len(told(adapter_problems(subject))) == count
    assert planned(*MODEL, f"{TARGETS}=all-linear").notices == ()


def test_layers_beside_experts_or_of_a_model_that_is_not_here_are_not_looked_for(place: Path) -> None:
    """Experts have other names in memory than in their files."""
    away = subject_of("exp=quickstart", "model=local", "model.path=org/away", "model.lora.target_modules=[q_prj]")
    assert told(adapter_problems(away)) == []
    weights = model_copy(place / "model") / WEIGHTS
    expert = {"model.layers.0.mlp.experts.0.up_proj.weight": numpy.zeros((2, 2), dtype=numpy.float32)}
    save_file({**load_file(weights), **expert}, weights, metadata={"format": "pt"})
    assert planned(*MODEL, "model.lora.target_modules=[q_prj]").notices == ()


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
@pytest.mark.parametrize("kind", ["model", "dataset"])
def test_a_repository_that_cannot_be_had(monkeypatch, place: Path, kind: Any) -> None:
    is_data, local = kind == "dataset", "a.path=COPY"
    page = f"https://huggingface.co/{'datasets/' * is_data}org/it"
    download = f"hf download org/it{' --repo-type dataset' * is_data}, or {local}"
    silent, named = HubAnswer("unreachable", "slow", is_silence=True), f"the name of a {kind} on the hub, or a folder"
    looked, copy = f"looked for {place}/org/it", "a network, or a copy on this machine"
    for answer, got, expected, hint, advice in (
        (HubAnswer("impossible", "why"), "why", "OWNER/NAME, such as Qwen/Qwen3-0.6B, or a folder", None, None),
        (HubAnswer("missing"), f"org/it; {looked}", named, f"{local}, or hf auth login", None),
        (HubAnswer("gated"), "no token with access", None, None, f"accept its terms at {page}, then `hf auth login`"),
        (HubAnswer("no_revision"), "v9", f"a branch, tag or commit: {page}/tree/main", "'~a.revision'", None),
        (HubAnswer("unreachable", "no route"), f"no route; {looked}", copy, download, None),
        (silent, f"slow; {looked}", copy, f"{download}, or export HF_HUB_ETAG_TIMEOUT=20", None),
    ):
        hub_says(monkeypatch, answer)
        with pytest.raises(DataError if is_data else ModelError) as caught:
            require_on_hub(HubQuestion(kind, "org/it", "v9"), where="a.path", local=local)
        error = caught.value
        assert error.where == ("a.revision" if answer.state == "no_revision" else "a.path")
        assert (error.got, error.expected, error.hint, error.advice) == (got, expected, hint, advice)


def test_all_repositories_are_asked_for_at_once(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    questions = hub_says(
        monkeypatch, HubAnswer("missing"), good=HubAnswer("there", folder=place), t=HubAnswer("cached")
    )
    words = "trainer=gkd teacher.path=org/t teacher.revision=v7 model=local model.path=org/good model.revision=v9"
    words += " model.tokenizer=org/words data.path=org/rows data=file data.revision=v5"
    report, subject = Report(), subject_of(*words.split())
    folders = report.run(hub_problems(subject), None)
    assert [(error.where, str(error.hint).partition(",")[0]) for error in report.problems.values()] == [
        ("model.tokenizer (command line)", "model.tokenizer=FOLDER"),
        ("data.path (command line)", "data.path=FILE"),
    ]
    assert folders == {"org/good": place}
    assert set(questions) == {
        HubQuestion("model", "org/good", "v9"),
        HubQuestion("model", "org/words", needs_weights=False),
        HubQuestion("model", "org/t", "v7"),
        HubQuestion("dataset", "org/rows", "v5"),
    }
    for words in ("model=local model.path=org/words", "data=file data.path=org/rows"):
        assert len(told(hub_problems(subject_of("exp=quickstart", *words.split())))) == 1


def test_uploads_need_a_network_and_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    key = "trainer.args.push_to_hub"
    subject = subject_of(*QUICK, f"{key}=true", "trainer.args.log_completions_hub_repo=a/b")
    keys, expected = (key, "trainer.args.log_completions_hub_repo"), "a network, and a token that may write"
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: None)
    got = "no token of the hub"
    assert told(upload_problems(subject)) == [(key, got, expected, f"'~{key}', or hf auth login") for key in keys]
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: "hf_1")
    assert told(upload_problems(subject)) == []
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    got, unset = "HF_HUB_OFFLINE=1", "or unset HF_HUB_OFFLINE"
    assert told(upload_problems(subject)) == [(key, got, expected, f"'~{key}', {unset}") for key in keys]


def test_models_whose_weights_are_loaded_and_whether_the_policy_reads_images(place: Path) -> None:
    for name, config in (("sees", {"vision_config": {}}), ("reads", {"model_type": "llama"})):
        (place / name).mkdir()
        (place / name / "config.json").write_text(json.dumps(config))
    words = ("exp=toy_ppo", "launch=cpu", "model=local", "model.path=org/p", "+rewards.j.model=org/j")
    named = [subject_of(*words, *more).named_models() for more in ((), ("critic.init=org/c",))]
    assert named[0] == {"model.path": "org/p", "rewards.j.model": "org/j"}
    assert named[1] == {"model.path": "org/p", "critic.init": "org/c", "rewards.j.model": "org/j"}
    taught = subject_of("trainer=gkd", "teacher.path=org/t", "data=file", "data.path=x", "launch=cpu")
    assert taught.named_models() == {"teacher.path": "org/t"}
    for path, reads_images in (("sees", True), ("reads", False), ("org/away", None)):
        assert subject_of(*words, f"model.path={path}").reads_images is reads_images
    assert taught.reads_images is False, "an embedded model"


@pytest.mark.parametrize(
    ("act", "where"),
    [
        (lambda: renames_in("nope", {}, name="--data"), "--data"),
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


PPO = ("exp=quickstart", "trainer=ppo", "trainer.args.num_generations=1", "launch=cpu")
A_CRITIC = {"architectures": ["LlamaForTokenClassification"], "id2label": {"0": "LABEL_0"}}
REWARD_MODEL = {"architectures": ["LlamaForSequenceClassification"], "id2label": {"0": "LABEL_0"}}
POLICY = {"architectures": ["LlamaForCausalLM"]}
TOKENS = {"a": 0, "b": 1}
SIZES = {"model_type": "llama", "hidden_size": 64, "vocab_size": 258}  # those of the tiny model


with_critic = functools.partial(planning.planned, *PPO)


def no_critic(*words: str) -> ModelError:
    with pytest.raises(ModelError) as caught:
        with_critic(*words)
    assert str(caught.value.where).startswith("critic.init (")
    return caught.value


@pytest.fixture
def make(write: Write) -> Callable[..., str]:
    """`make("there", A_CRITIC, hidden_size=32)`: a model folder; `tokens` are those of its tokenizer.json."""

    def call(name: str, config: dict[str, Any], *, tokens: Any = None, **more: Any) -> str:
        write(f"{name}/config.json", json.dumps(config | SIZES | more))
        write(f"{name}/tokenizer_config.json", "{}")
        write(f"{name}/model.safetensors", EMPTY_WEIGHTS)
        if tokens is not None:
            write(f"{name}/tokenizer.json", tokenizer_json(tokens, {"<end>": 100}))
        return name

    return call


Make = Callable[..., str]


@pytest.mark.parametrize(
    "config", [{"architectures": ["BertModel"]}, REWARD_MODEL | {"id2label": {"0": "a", "1": "b", "2": "c"}}], ids=str
)
def test_models_that_are_no_critic(make: Make, config: dict[str, Any]) -> None:
    """Controls: models that may be one."""
    one_label = {"architectures": A_CRITIC["architectures"], "num_labels": 1}
    for number, fits in enumerate((A_CRITIC, REWARD_MODEL, POLICY, one_label)):
        assert with_critic(f"critic.init={make(f'fits-{number}', fits)}")
    error = no_critic(f"critic.init={make('there', config)}")
    assert error.hint == "critic.init=policy"
    assert str(error.got).endswith(config["architectures"][0])


def test_a_critic_has_every_token_of_a_policy_of_ones_own(make: Make) -> None:
    """model.path=mine knows a, b and <end>, its token 100. An embedding may be smaller than the policy's."""
    words = ("model=local", "model.path=mine", "critic.init=there")
    make("mine", POLICY, tokens=TOKENS)
    make("there", A_CRITIC, tokens=TOKENS, vocab_size=101)
    assert with_critic(*words)
    make("there", A_CRITIC, tokens=TOKENS, vocab_size=100)
    assert no_critic(*words).got == "vocab_size 100; the policy has 101 tokens"
    others: list[tuple[Any, Any]] = [({"a": 0, "b": 1}, {"a": 1, "b": 0}), (["a", "b"], ["b", "a"])]
    for ours, theirs in others:
        make("mine", POLICY, tokens=ours)
        make("there", A_CRITIC, tokens=theirs)
        error = no_critic(*words)
        assert (error.hint, "'a'" in str(error.got)) == ("critic.init=policy", True)
