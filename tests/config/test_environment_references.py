"""A text from the environment stays a reference in the frozen configuration, and is what it was when it is read."""

from __future__ import annotations

import pytest
import yaml

from rlhf_cli.config.compose import compose
from rlhf_cli.config.environment_references import resolved_references, with_references
from rlhf_cli.errors import ConfigError
from rlhf_cli.text.json_values import JsonTree
from tests.support.planning import Judged, Refused, Write

pytestmark = pytest.mark.usefixtures("place", "by_hydra")


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
