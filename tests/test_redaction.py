"""What a secret looks like and what does not: shapes as their issuers document them, made-up values."""

from __future__ import annotations

import io
import json
import random
import time

import pytest

from rlhf_cli.text import redaction
from rlhf_cli.text.redaction import (
    forgetting,
    is_secret_key,
    redacted,
    redacted_tree,
    redacted_values,
    remember,
    remember_typed,
    remember_variable,
    secret_in,
)
from rlhf_cli.text.terminal_output import SafeStream, safe_output

SHAPED = {
    "hf_AbCdEfGhIjKlMnOpQrStUvWxYz": "a Hugging Face token",
    "sk-proj-abc_def-0123456789ABCDEF": "an OpenAI or Anthropic key",
    "AKIAIOSFODNN7EXAMPLE": "an AWS key",
    "ghp_0123456789abcdefghijABCDEFGHIJ012345": "a GitHub token",
    "xoxb-123456789012-abcdef": "a Slack token",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N": "a JSON web token",
    "https://user:pw@host/path": "a password in an address",
    "https://:pw@host/path": "a password in an address",
    "https://host/path?a=1&api_key=abc": "a key in an address",
    "wss://host?token=abc#top": "a key in an address",
}


@pytest.mark.parametrize(("text", "kind"), SHAPED.items())
def test_a_shape_is_known_and_hidden(text: str, kind: str) -> None:
    assert secret_in(f"before {text} after") == (kind, None)
    hidden = redacted(f"before {text} after")
    assert hidden.startswith("before ")
    assert "***" in hidden
    assert hidden.endswith(" after")
    for part in ("AbCdEf", "proj-abc", "IOSFODNN", "0123456789abcdefghij", "1234", "dozjg", ":pw@", "=abc"):
        assert part not in hidden


@pytest.mark.parametrize(
    "text",
    [
        *("https://host:8000/v1?rows=3", "me@example.org", "hf_hub", "sk-learn", "task-oriented-dialogue-systems-2023"),
        *("org/model-7B", "4f3c2b1a9d8e7f6a5b4c3d2e1f0a9b8c7d6e5f4a", "pad_token: <|endoftext|>", "tokens: 12345678"),
        *("max_tokens=1000000", "'hub_token': '<HUB_TOKEN>'", "api_key: ${oc.env:NAME}", "api_key_env=JUDGE_KEY"),
        *("password: None", "c:\\users:x@y", "a key in an address"),
    ],
)
def test_what_only_resembles_one_stays(text: str) -> None:
    assert secret_in(text) is None
    assert redacted(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("{'Authorization': 'Bearer abc123def'}", "{'Authorization': 'Bearer ***'}"),
        ("authorization: Basic dXNlcjpwYXNz", "authorization: Basic ***"),
        ("OPENAI_API_KEY=verysecret rlhf train", "OPENAI_API_KEY=*** rlhf train"),
        ('{"password": "hunter22"}', '{"password": "***"}'),
        ("wandb api_key 4f3c", "wandb api_key 4f3c"),
    ],
)
def test_beside_its_name(text: str, shown: str) -> None:
    assert redacted(text) == shown


def test_keys_of_secrets() -> None:
    secret = ["hub_token", "apikey", "API_KEY", "openai_api_key", "password", "client_secret"]
    assert all(map(is_secret_key, secret))
    other = ["eos_token", "pad_token", "max_tokens", "api_key_env", "tokenizer", "key", "author"]
    assert not any(map(is_secret_key, other))
    for path in ("trainer.args", "data.args", "rewards.mine.args"):  # a key may be given whole
        assert all(is_secret_key(f"{path}.{name}") for name in secret)
        assert not any(is_secret_key(f"{path}.{name}") for name in other)


def test_a_tokenizer_s_token_is_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its value stays readable wherever it was typed, so that a recorded command can be typed again."""
    remember_typed(["++trainer.args.eos_token=<end_of_turn>", "trainer.args.hub_token=abc123x"])
    monkeypatch.setenv("EOS_TOKEN", "<|im_end|>")
    monkeypatch.setenv("MY_TOKEN", "abc123y")
    shown = redacted_tree({"trainer.args.eos_token": "<end_of_turn>", "text": "<|im_end|> abc123x abc123y"})
    assert shown == {"trainer.args.eos_token": "<end_of_turn>", "text": "<|im_end|> *** ***"}


def test_a_remembered_value_is_hidden_however_it_is_written() -> None:
    value = "pä\"ss'w\\or d/1"
    remember(value)
    in_addresses = ("p%C3%A4%22ss%27w%5Cor%20d%2F1", "p%C3%A4%22ss%27w%5Cor+d%2F1")
    for written in (value, repr(value), json.dumps(value), *in_addresses):
        assert "***" in redacted(f"x {written} y"), written
    with forgetting():
        remember("only in here")
        assert redacted("only in here") == "***"
    assert redacted("only in here") == "only in here"
    assert redacted(value) == "***"


def test_a_password_of_a_remembered_address_and_a_line_of_a_long_key() -> None:
    remember("postgres://me:inner-pw@host/db")
    remember("-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG9w0\n-----END KEY-----")
    assert redacted("login inner-pw failed") == "login *** failed"
    assert redacted("at MIIEvQIBADANBgkqhkiG9w0:") == "at ***:"


def test_what_is_short_or_a_path_of_this_machine_is_none(tmp_path) -> None:
    for value in ("1", "abcde", str(tmp_path), "${oc.env:NAME}"):
        remember(value)
        assert redacted_values(f"{value} stays") == f"{value} stays"


def test_variables_by_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVICE_PASSWORD", "plain-words-1")
    monkeypatch.setenv("SERVICE_REGION", "region-words-1")
    assert redacted("plain-words-1 of region-words-1") == "*** of region-words-1"
    assert secret_in("a plain-words-1 b") == (
        "the value of the environment variable SERVICE_PASSWORD",
        "SERVICE_PASSWORD",
    )
    assert secret_in("a region-words-1 b") is None


@pytest.mark.parametrize("name", ["my_api_key", "hf_token", "password", "Db_Password", "API_KEY_2", "MYSQL_PWD"])
def test_the_case_of_a_name_and_a_number_behind_it_hide_nothing_from_us(name: str, monkeypatch) -> None:
    monkeypatch.setenv(name, "plain-words-1")
    assert redacted("a plain-words-1 b") == "a *** b"
    assert secret_in("a plain-words-1 b") == (f"the value of the environment variable {name}", name)


def test_a_password_in_the_address_that_any_variable_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The password may be shown alone, and decoded: a server's message has it so."""
    monkeypatch.setenv("database_url", "postgres://me:pa%2Fss-word@host/db")
    monkeypatch.setenv("homepage", "https://host/inner-words")
    assert redacted("login pa/ss-word or pa%2Fss-word failed") == "login *** or *** failed"
    assert redacted("https://host/inner-words") == "https://host/inner-words"
    monkeypatch.setenv("index_url", "https://me@example.com:pass-of-a-mail@host/simple")
    monkeypatch.setenv("other_url", "postgres://me:two words@host/db")
    assert redacted("login pass-of-a-mail, two words failed") == "login ***, *** failed"


def test_a_plain_word_is_hidden_only_where_its_name_or_key_says_so() -> None:
    """A tag `finished` from the environment must not be taken out of status.json."""
    remember_variable("PHASE", "finished", key="track.tags.0")
    assert redacted("finished") == "finished"
    remember_variable("PHASE", "finished", key="rewards.a.args.api_key")
    assert redacted("finished") == "***"
    remember_variable("MY_TOKEN", "swordfish", key="track.notes")
    assert redacted("swordfish") == "***"
    remember_variable("NOTE", "swordfish 7", key="track.notes")
    assert redacted("a swordfish 7") == "a ***"


def test_what_was_typed_under_a_secret_key() -> None:
    remember_typed(["++track.api_key='abc123x'", "seed=1234567", "--trust"])
    assert redacted("abc123x 1234567") == "*** 1234567"


def test_a_tree_is_hidden_by_value_and_by_key() -> None:
    remember("known-value")
    kept = {"eos_token": "</s>", "n": 2.5}
    tree = {**kept, "a": ["known-value", 1, None], "token": "short", "b": {"url": "http://u:p@h"}}
    assert redacted_tree(tree) == {**kept, "a": ["***", 1, None], "token": "***", "b": {"url": "http://***@h"}}
    assert redacted_tree(tree, values_only=True) == {**tree, "a": ["***", 1, None]}
    assert tree["token"] == "short"


@pytest.mark.parametrize("piece", ["w_", "eyJaaaaaaaaaa-", "a://b:", "authorization: ", "bearer  ", "api_key=", "sk-"])
def test_a_long_text_takes_time_by_its_length(piece: str) -> None:
    """A model may print anything: 200,000 characters of what almost matches, at most a second of CPU."""
    started = time.process_time()
    redacted(piece * (200_000 // len(piece)))
    assert time.process_time() - started < 1


def test_a_stream_hides_and_is_otherwise_the_one_it_wraps(capsys: pytest.CaptureFixture[str]) -> None:
    remember("known-value")
    inner = io.StringIO()
    stream = SafeStream(inner)
    assert stream.write("a known-value\n") == len("a known-value\n")
    stream.writelines(["known-value", "!"])
    assert inner.getvalue() == "a ***\n***!"
    assert not stream.isatty()
    with safe_output(), safe_output():
        print("known-value")
    assert capsys.readouterr().out == "***\n"
    print("known-value")
    assert capsys.readouterr().out == "known-value\n"


def test_no_text_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most texts are told from those that may hold a secret by a look for a few words: never one that has one.

    Drawn of pieces of secrets in all cases, those among them that `re.IGNORECASE` takes for an i, an s or a k.
    """
    pieces = [*SHAPED, "AUTHORIZATION: abcdefghi", "authorızation=abcdefghi", "paſſword: abcdefgh", "To\u212aen"]
    pieces += [
        "PASSWD='abcdefgh'",
        "hub_token: abcdefgh",
        "ACCESS_TOKEN=abcdefgh",
        "AUTH_TOKEN:abcdefgh",
        "ApiKey: abcd",
    ]
    pieces += [
        "?\u212aey=abc",
        "&SIG=1",
        "&ſig=1",
        "?signature=a",
        "?auth=b",
        "?Password=c",
        "bearer abcdefghijklmnopq",
    ]
    pieces += ["api_key=", "=", ":", "?", "abcdefgh", " ", "secret", "ſecret: abcdefgh", "ASIAIOSFODNN7EXAMPLE", "://"]
    pieces += [prefix + "0" * 36 for prefix in ("gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "hf_", "sk-", "xoxp-")]
    chance = random.Random(0)
    texts = ["".join(chance.choices(pieces, k=chance.randint(1, 4))) for _ in range(4000)]
    quickly = [redacted(text) for text in texts]
    monkeypatch.setattr(redaction, "_SIGNS", ("",))  # which stands in every text
    assert quickly == [redacted(text) for text in texts]
    assert sum(one != text for one, text in zip(quickly, texts, strict=True)) > 2000
