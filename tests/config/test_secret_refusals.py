"""A secret that is typed is refused, whatever key it stands under, and no message repeats it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rlhf_cli.cli import main
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.errors import ConfigError

pytestmark = pytest.mark.usefixtures("place")
Refused = Callable[..., ConfigError]


@pytest.mark.parametrize(
    ("typed", "kind"),
    [
        ("track.notes=hf_AbCdEfGhIjKlMnOpQrStUvWxYz", "a Hugging Face token"),
        ("rewards.format.args.url=https://me:s3cr3tpw@host/", "a password in an address"),
        ("rewards.format.args.url='https://host/?api_key=s3cr3tpw'", "a key in an address"),
        ("trainer.args.vllm_server_base_url=http://me:s3cr3tpw@host:8000", "a password in an address"),
    ],
)
def test_by_its_shape(refused: Refused, typed: str, kind: str) -> None:
    error = refused("exp=quickstart", typed)
    assert kind in error.what
    assert error.where == f"{typed.partition('=')[0]} (command line)"
    assert "${oc.env:NAME}" in str(error.hint)
    assert "s3cr3tpw" not in str(error)
    assert "AbCdEf" not in str(error)


def test_what_the_shell_put_in_the_place_of_a_variable(refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVICE_PASSWORD", "plain-words-1")
    error = refused("exp=quickstart", "track.notes=with plain-words-1")
    assert "SERVICE_PASSWORD" in error.what
    assert error.hint == "'track.notes=${oc.env:SERVICE_PASSWORD}'"
    assert "plain-words-1" not in str(error)


def test_a_reference_is_accepted_under_any_key(
    judged: Callable[..., Experiment], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUDGE_KEY", "judge-key-1")
    monkeypatch.setenv("JUDGE_URL", "https://me:pw-of-judge@host/")
    words = ["rewards.format.args.api_key=${oc.env:JUDGE_KEY}", "rewards.format.args.url=${oc.env:JUDGE_URL}"]
    args = judged("exp=quickstart", *words).rewards["format"].args
    assert args == {"api_key": "judge-key-1", "url": "https://me:pw-of-judge@host/"}


@pytest.mark.parametrize(
    "words",
    [
        ["trainer.args.hub_token=s3cr3tpw"],
        ["trainer.args.hub_token=${oc.env:SECRET_OF_MINE}"],
        ["track.apikey=s3cr3tpw"],
        ["apikey=s3cr3tpw"],
        ["launch.password=[s3cr3tpw]"],
        ["seed=https://me:s3cr3tpw@host"],
        ["track.api_key=s3cr3tpw'"],
        ["trainer.args.password=s3cr3tpw", "trainer.args.learning_rate=s3cr3tpw"],
    ],
    ids=str,
)
def test_no_message_repeats_it(words: list[str], capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_MINE", "s3cr3tpw")
    assert main(["check", "+exp=quickstart", *words]) == 2
    printed = capsys.readouterr()
    assert "error:" in printed.err
    assert "s3cr3tpw" not in printed.out + printed.err
