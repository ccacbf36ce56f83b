"""Which file wins in a composition, where each value came from, and what a frozen one keeps of the environment."""

from __future__ import annotations

import dataclasses

import pytest
import yaml
from hydra.types import RunMode
from omegaconf import OmegaConf, open_dict

from rlhf_cli.config import compose as composition
from rlhf_cli.config.compose import CONFIG_NAME, Composed, compose, composing
from rlhf_cli.config.conf_folders import groups, search_dirs, shipped_dir
from rlhf_cli.config.environment_references import resolved_references, with_references
from rlhf_cli.config.json_schema import configuration_schema
from rlhf_cli.errors import ConfigError
from rlhf_cli.text.json_values import JsonTree, section
from rlhf_cli.text.regular_files import SAFE_LOADER
from tests.support.planning import Judged, Refused, Write
from tests.support.quick_loader import QuickLoader
from tests.support.small_runs import PPO_SMALL, SMALL

pytestmark = pytest.mark.usefixtures("place", "by_hydra")


def origin(composed: Composed, key: str) -> str:
    return str(composed.origins.by_key[key])


def test_the_experiment_wins_over_its_defaults_and_the_command_line_over_both() -> None:
    """digits_only.yaml says 0.2, quickstart 0.5."""
    for words, weight in (
        (["reward@rewards.format=digits_only"], 0.2),
        (["exp=quickstart"], 0.5),
        (["rewards.format.weight=0.7", "exp=quickstart"], 0.7),
    ):
        assert compose(words).tree["rewards"]["format"]["weight"] == weight


def test_origins_of_a_shipped_experiment() -> None:
    composed = compose(["exp=quickstart", "rewards.format.weight=2", "rewards.correct={}", "seed=3"])
    assert origin(composed, "rewards.format.weight") == "command line"
    assert origin(composed, "seed") == "command line"
    assert origin(composed, "rewards.brevity.weight") == "exp/quickstart.yaml:18"
    assert origin(composed, "rewards.correct.weight") == "reward/sums_correct.yaml:4"
    assert origin(composed, "data.world") == "data/toy_sums.yaml:3"
    lines = (shipped_dir() / "train.yaml").read_text().splitlines()
    assert origin(composed, "run.root") == f"conf/train.yaml:{lines.index('  root: runs') + 1}"


@pytest.mark.parametrize("words", [["+exp=quickstart", "trainer=ppo"], ["+exp=toy_sft", "++seed=3"]])
def test_the_files_that_were_merged_are_hydras_own_list(words: list[str]) -> None:
    """And what they come to: with Hydra's own settings beside them, and without."""
    with composing() as loader:
        config, choices = loader.compose(CONFIG_NAME, words)
        merged = loader.merged
        theirs = loader.compute_defaults_list(CONFIG_NAME, words, RunMode.RUN).defaults
        whole = loader.load_configuration(CONFIG_NAME, words, RunMode.RUN, from_shell=False)
        all_choices = OmegaConf.to_container(whole.hydra.runtime.choices)
        with open_dict(whole):
            del whole["hydra"]
    ours = [default for default in theirs if not str(default.config_path).startswith("hydra/")]
    assert [(file.config_path, file.package) for file in merged] == [(file.config_path, file.package) for file in ours]
    assert len(ours) < len(theirs)
    assert words[0].removeprefix("+exp=") in str(merged[-1].config_path)
    assert config == whole
    assert choices == {group: option for group, option in all_choices.items() if not group.startswith("hydra/")}


def test_the_fast_loader_reads_what_the_slow_one_reads() -> None:
    texts = [file.read_text(encoding="utf-8") for file in sorted(shipped_dir().rglob("*.yaml"))]
    texts.append("a: 1e-3\nb: [~, yes, '☃', 1_000]\nc: |\n  two\n  lines\nd: 2026-01-31\n")
    assert SAFE_LOADER is not yaml.SafeLoader
    for text in texts:
        assert yaml.load(text, Loader=SAFE_LOADER) == yaml.safe_load(text)
        fast, slow = (list(yaml.parse(text, Loader=loader)) for loader in (SAFE_LOADER, yaml.SafeLoader))
        assert [event.start_mark.line for event in fast] == [event.start_mark.line for event in slow]


def test_the_users_file_wins_over_the_shipped_one_of_the_same_name(write: Write) -> None:
    assert compose(["exp=quickstart"]).tree["data"]["args"]["max_value"] == 20
    file = write("conf/data/toy_sums.yaml", "# my sums\nworld: toy_sums\nargs: {num_rows: 9, max_value: 4}\n")
    composed = compose(["exp=quickstart"])
    assert composed.tree["data"]["args"] == {"num_rows": 9, "max_value": 4}
    assert origin(composed, "data.args.max_value") == "conf/data/toy_sums.yaml:3"
    assert groups()["data"]["toy_sums"] == file
    assert groups()["data"]["gsm8k"] != file
    assert search_dirs() == [file.parents[1], shipped_dir()]


def test_a_group_of_the_users_is_appended_as_typed_and_has_its_sections_schema(write: Write) -> None:
    """Without defaults that hold it, Hydra wants the sign; with them it wants none."""
    write("conf/kl/low.yaml", "coef: 0.2\n")
    config = compose(["+exp=toy_ppo", "+kl=low"])
    assert (section(config.tree, "kl")["coef"], origin(config, "kl.coef")) == (0.2, "conf/kl/low.yaml:1")
    frozen = compose(["+kl=low"], frozen=(config.tree | {"kl": {"where": "loss"}}, None))
    assert (frozen.tree["kl"], frozen.choices) == ({"coef": 0.2}, {"kl": "low"})
    with pytest.raises(ConfigError) as refused:
        compose(["+exp=toy_ppo", "kl=low"])
    assert refused.value.hint == "+kl=low"
    assert [*section(configuration_schema("kl"), "properties")] == ["where", "coef", "controller", "defaults"]


@pytest.mark.parametrize("key", ["stop", "expect"])
def test_a_typed_section_of_rules_replaces_the_named_ones_of_a_file(write: Write, key: str) -> None:
    write("conf/exp/mine.yaml", f"# @package _global_\n{key}:\n  far: {{metric: kl, at_least: 1}}\n")
    for typed in ("{near: {metric: kl}}", "[{metric: kl}]"):
        (value,) = compose(["exp=mine", f"{key}={typed}"]).tree[key]  # type: ignore[misc]
        assert value in ("near", {"metric": "kl"})


def test_a_typed_path_drops_what_belonged_to_a_dataset_of_the_hub(write: Write) -> None:
    """data=gsm8k says subset: main, split: train. In a mix, a path of one source drops what the source had."""
    composed = compose(["data=gsm8k", "data.path=mine.jsonl"])
    data = composed.tree["data"]
    assert (data["path"], data["subset"], data["split"]) == ("mine.jsonl", None, None)
    assert data["prompt"].startswith("Question: ")
    assert origin(composed, "data.subset") == "command line"
    write("conf/data/both.yaml", "mix: {a: {path: o/n, split: test, args: {split: b}}, b: {path: o/m, split: test}}\n")
    mix = compose(["data=both", "data.mix.a.path=mine.jsonl", "data.mix.b.args.path=x"]).tree["data"]["mix"]
    assert mix["a"] == {"path": "mine.jsonl", "split": None, "args": {"split": "b"}}
    assert mix["b"] == {"path": "o/m", "split": "test", "args": {"path": "x"}}


def test_held_out_rows_have_one_origin_and_a_typed_one_wins() -> None:
    """toy_sft holds out a fraction of 0.1."""
    for typed, left in (
        ("data.eval.path=other.jsonl", {"path": "other.jsonl", "fraction": None}),
        ("data.eval.fraction=0.2", {"fraction": 0.2}),
        ("seed=1", {"fraction": 0.1}),
    ):
        assert compose(["exp=toy_sft", typed]).tree["data"]["eval"] == left


WORDS = [
    [],
    [*SMALL, *PPO_SMALL, "~rewards.brevity", "rewards.mine={fn: 'x:y', weight: 2}", "reward@rewards.again=digits_only"],
    ["exp=toy_sft", "~data.eval", "data.eval.path=a.jsonl", "model={path: a, build: null}", "debug=overfit"],
    ["exp=quickstart", "run.root=${oc.env:HOME}/x", "track.notes='a: ${seed}'"],
]


@pytest.mark.parametrize("words", WORDS)
def test_the_quick_loader_composes_what_hydra_does(monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    """Everything: values, choices, where each came from, what came from the environment; again with a memory."""
    slow = compose(words)
    assert slow.origins.by_key
    monkeypatch.setattr(composition, "NotingLoader", QuickLoader)
    for quick in (compose(words), compose(words)):
        assert dataclasses.asdict(quick) == dataclasses.asdict(slow)
        assert str(quick.tree) == str(slow.tree)  # in the same order


@pytest.mark.parametrize(
    ("typed", "key", "line"),
    [("data=gsm8k", "data.path", 4), ("data=toy_sums", "data.path", 4), ("model=tiny", "model.path", 5)],
)
def test_a_typed_group_whose_source_the_experiment_replaces(write: Write, typed: str, key: str, line: int) -> None:
    defaults = "defaults: [{override /data: file}, {override /model: local}, _self_]"
    lines = ["# @package _global_", defaults, "data:", "  path: rows.jsonl", "model: {path: here}"]
    write("conf/exp/mine.yaml", "\n".join(lines) + "\n")
    with pytest.raises(ConfigError) as error:
        compose(["+exp=mine", typed])
    assert (f"mine.yaml:{line} sets {key}" in error.value.what, error.value.got) == (True, typed)
    assert compose(["+exp=mine", "data=file", "model=local"]).tree["data"]["path"] == "rows.jsonl"
    group, _, option = typed.partition("=")
    assert compose([typed]).choices[group] == option


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PW", "pass-word-1")
    monkeypatch.setenv("STEPS", "7")
    monkeypatch.setenv("MODEL", "org/model")
    monkeypatch.delenv("ABSENT", raising=False)


def frozen(*words: str) -> tuple[JsonTree, JsonTree]:
    """The composed tree, and the same as it is written into config.yaml and read again."""
    composed = compose(["+exp=quickstart", *words])
    written = yaml.safe_dump(with_references(composed.tree, composed.references), allow_unicode=True)
    return composed.tree, yaml.safe_load(written)


def at(tree: JsonTree, key: str) -> object:
    node: object = tree
    for part in key.split("."):
        assert isinstance(node, dict)
        node = node[part]
    return node


@pytest.mark.parametrize(
    ("typed", "kept"),
    [
        ("track.notes=${oc.env:PW}", "${oc.env:PW}"),
        ("track.notes='a ${oc.env:PW} b'", "a ${oc.env:PW} b"),
        ("track.notes=${oc.env:PW,other}", "${oc.env:PW}"),
        ("track.notes=${oc.env:ABSENT,other}", "other"),
        ("track.tags=['${oc.env:PW}',b]", ["${oc.env:PW}", "b"]),
        ("track.notes=${track.project}", "rlhf"),
        (r"track.notes='\${oc.env:PW}'", r"\${oc.env:PW}"),
    ],
)
def test_a_text_is_kept_as_a_reference_and_read_as_what_it_is(typed: str, kept: object) -> None:
    tree, written = frozen(typed)
    key = typed.partition("=")[0]
    assert at(written, key) == kept
    assert resolved_references(written) == tree
    # Composing a frozen configuration anew, as resume and eval do, gives the same tree, and keeps the reference.
    again = compose([], (written, None))
    assert again.tree == tree
    assert at(with_references(again.tree, again.references), key) == kept


def test_numbers_and_names_of_things_are_frozen_as_they_were(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a run that goes on in another shell would train another model. A name that holds a password is none."""
    steps = "trainer: {args: {max_steps: '${oc.decode:${oc.env:STEPS}}'}}"
    write("conf/debug/mine.yaml", f"# @package _global_\n{steps}\n")
    _, written = frozen("debug=mine", "model.path=${oc.env:MODEL}", "track.project=${oc.env:MODEL}")
    assert at(written, "trainer.args.max_steps") == 7
    assert at(written, "model.path") == at(written, "track.project") == "org/model"
    monkeypatch.setenv("DATA", "https://me:pw-of-data@host/rows.jsonl")
    assert at(frozen("data.path=${oc.env:DATA}")[1], "data.path") == "${oc.env:DATA}"


def test_a_variable_that_is_gone_is_named_with_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    _, written = frozen("track.notes=${oc.env:PW}")
    monkeypatch.delenv("PW")
    for read in (resolved_references, lambda tree: compose([], (tree, None))):
        with pytest.raises(ConfigError, match="PW is not set") as caught:
            read(written)
        assert (caught.value.where, caught.value.hint) == ("track.notes", "export PW=...")


@pytest.mark.parametrize(
    "written", ["${oc.env:STEPS}", '"${oc.env:STEPS}"  # a comment', "$STEPS", "${oc.env:ABSENT,7}"]
)
def test_a_variable_for_a_number_is_to_be_decoded(written: str, write: Write, refused: Refused, judged: Judged) -> None:
    head = "# @package _global_\ndefaults: [quickstart, _self_]\n"
    write("conf/exp/mine.yaml", f"{head}trainer:\n  args:\n    max_steps: {written}\n")
    error = refused("exp=mine")
    assert str(error.where).endswith("(conf/exp/mine.yaml:5)")
    write("conf/exp/mine.yaml", f"{head}trainer:\n  args:\n    {error.hint}\n")
    assert judged("exp=mine").trainer.args["max_steps"] == 7
    write("conf/exp/mine.yaml", f"{head}run:\n  name: a-${{STEPS}}\n")
    assert refused("exp=mine").hint == "a-${oc.env:STEPS}", "the form of a shell"
