"""Secrets are recognised by the shapes that their issuers document; all values are made up."""

from __future__ import annotations

import ast
import io
import json
import random
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import rlhf_cli
from rlhf_cli.text import redaction
from rlhf_cli.text.redaction import (
    SafeStream,
    forgetting,
    is_secret_key,
    redacted,
    redacted_tree,
    remember,
    remember_typed,
    remember_variable,
    safe_output,
    secret_in,
)

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
def test_known_shapes_are_hidden(text: str, kind: str) -> None:
    assert secret_in(f"before {text} after") == (kind, None)
    hidden = redacted(f"before {text} after")
    assert re.fullmatch(r"before .*\*\*\*.* after", hidden)
    for part in ("AbCdEf", "proj-abc", "IOSFODNN", "0123456789abcdefghij", "1234", "dozjg", ":pw@", "=abc"):
        assert part not in hidden


@pytest.mark.parametrize(
    "text",
    [
        *("https://host:8000/v1?rows=3", "me@example.org", "hf_hub", "sk-learn", "task-oriented-dialogue-systems-2023"),
        *("org/model-7B", "4f3c2b1a9d8e7f6a5b4c3d2e1f0a9b8c7d6e5f4a", "pad_token: <|endoftext|>", "tokens: 12345678"),
        *("max_tokens=1000000", "'hub_token': '<HUB_TOKEN>'", "api_key: ${oc.env:NAME}", "api_key_env=JUDGE_KEY"),
        *("password: None", "c:\\users:x@y", "a key in an address", "wandb api_key 4f3c"),
    ],
)
def test_similar_texts_are_kept(text: str) -> None:
    assert secret_in(text) is None
    assert redacted(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("{'Authorization': 'Bearer abc123def'}", "{'Authorization': 'Bearer ***'}"),
        ("authorization: Basic dXNlcjpwYXNz", "authorization: Basic ***"),
        ("OPENAI_API_KEY=verysecret rlhf train", "OPENAI_API_KEY=*** rlhf train"),
        ('{"password": "hunter22"}', '{"password": "***"}'),
    ],
)
def test_values_beside_a_secret_name_are_hidden(text: str, shown: str) -> None:
    assert redacted(text) == shown


def test_keys_of_secrets() -> None:
    secret = ["hub_token", "apikey", "API_KEY", "openai_api_key", "password", "client_secret"]
    assert all(map(is_secret_key, secret))
    other = ["eos_token", "pad_token", "max_tokens", "api_key_env", "tokenizer", "key", "author"]
    assert not any(map(is_secret_key, other))
    for path in ("trainer.args", "data.args", "rewards.mine.args"):  # a full key
        assert all(is_secret_key(f"{path}.{name}") for name in secret)
        assert not any(is_secret_key(f"{path}.{name}") for name in other)


def test_the_token_of_a_tokenizer_is_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its value stays readable, so that a recorded command can be repeated."""
    typed = ["++trainer.args.eos_token=<end_of_turn>", "++trainer.args.hub_token='abc123x'", "seed=1234567", "--trust"]
    remember_typed(typed)
    monkeypatch.setenv("EOS_TOKEN", "<|im_end|>")
    monkeypatch.setenv("MY_TOKEN", "abc123y")
    shown = redacted_tree({"trainer.args.eos_token": "<end_of_turn>", "text": "<|im_end|> abc123x abc123y 1234567"})
    assert shown == {"trainer.args.eos_token": "<end_of_turn>", "text": "<|im_end|> *** *** 1234567"}


def test_a_remembered_value_is_hidden_in_every_form() -> None:
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
    remember("postgres://me:inner-pw@host/db")
    remember("-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG9w0\n-----END KEY-----")
    assert redacted("login inner-pw failed at MIIEvQIBADANBgkqhkiG9w0:") == "login *** failed at ***:"


def test_short_values_and_local_paths_are_kept(tmp_path) -> None:
    for value in ("1", "abcde", str(tmp_path), "${oc.env:NAME}"):
        remember(value)
        assert redacted_tree(f"{value} stays", values_only=True) == f"{value} stays"


@pytest.mark.parametrize(
    "name", ["SERVICE_PASSWORD", "my_api_key", "hf_token", "password", "Db_Password", "API_KEY_2", "MYSQL_PWD"]
)
def test_variables_by_their_names(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "plain-words-1")
    monkeypatch.setenv("SERVICE_REGION", "region-words-1")
    assert redacted("a plain-words-1 of region-words-1") == "a *** of region-words-1"
    assert secret_in("a plain-words-1 b") == (f"the value of the environment variable {name}", name)
    assert secret_in("a region-words-1 b") is None


@pytest.mark.parametrize(
    ("address", "text", "shown"),
    [
        # The password is hidden alone and decoded, too, as in a server's message.
        ("postgres://me:pa%2Fss-word@host/db", "login pa/ss-word or pa%2Fss-word failed", "login *** or *** failed"),
        ("https://me@example.com:pass-of-a-mail@host/simple", "login pass-of-a-mail failed", "login *** failed"),
        ("postgres://me:two words@host/db", "login two words failed", "login *** failed"),
        ("https://host/inner-words", "https://host/inner-words", "https://host/inner-words"),
    ],
)
def test_a_password_in_the_address_of_any_variable(address: str, text: str, shown: str, monkeypatch) -> None:
    monkeypatch.setenv("database_url", address)
    assert redacted(text) == shown


def test_a_plain_word_is_hidden_only_under_a_secret_name_or_key() -> None:
    """A tag `finished` from the environment must stay in status.json."""
    remember_variable("PHASE", "finished", key="track.tags.0")
    assert redacted("finished") == "finished"
    remember_variable("PHASE", "finished", key="rewards.a.args.api_key")
    assert redacted("finished") == "***"
    remember_variable("MY_TOKEN", "swordfish", key="track.notes")
    assert redacted("swordfish") == "***"
    remember_variable("NOTE", "swordfish 7", key="track.notes")
    assert redacted("a swordfish 7") == "a ***"


def test_values_and_keys_of_a_tree_are_hidden() -> None:
    remember("known-value")
    kept = {"eos_token": "</s>", "n": 2.5}
    tree = {**kept, "a": ["known-value", 1, None], "token": "short", "b": {"url": "http://u:p@h"}}
    assert redacted_tree(tree) == {**kept, "a": ["***", 1, None], "token": "***", "b": {"url": "http://***@h"}}
    assert redacted_tree(tree, values_only=True) == {**tree, "a": ["***", 1, None]}
    assert tree["token"] == "short"


@pytest.mark.parametrize("piece", ["w_", "eyJaaaaaaaaaa-", "a://b:", "authorization: ", "bearer  ", "api_key=", "sk-"])
def test_a_long_text_takes_linear_time(piece: str) -> None:
    """200,000 characters that almost match take at most a second of CPU."""
    started = time.process_time()
    redacted(piece * (200_000 // len(piece)))
    assert time.process_time() - started < 1


def test_a_safe_stream_behaves_like_the_stream_it_wraps(capsys: pytest.CaptureFixture[str]) -> None:
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


def test_signs_of_our_tables_stay_distinct_without_unicode() -> None:
    inner = io.TextIOWrapper(raw := io.BytesIO(), encoding="ascii")
    signs = [*"●○→↓…", *"▁▂▃▄▅▆▇█"]
    stream = SafeStream(inner)
    stream.write(" ".join([*signs, "±", "é"]))
    stream.flush()
    *shown, plus_minus, letter = raw.getvalue().decode().split(" ")
    assert len(set(shown)) == len(signs)
    assert {*map(len, shown)} == {1}
    assert (plus_minus, letter) == ("+-", "?")


def test_the_quick_test_for_secrets_misses_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quick search for a few words skips most texts; compare it with the full search on random pieces of secrets.

    Some pieces have letters that `re.IGNORECASE` treats as i, s or k.
    """
    pieces = [*SHAPED, "AUTHORIZATION: abcdefghi", "authorızation=abcdefghi", "paſſword: abcdefgh", "To\u212aen"]
    pieces += ["PASSWD='abcdefgh'", "hub_token: abcdefgh", "ACCESS_TOKEN=abcdefgh", "AUTH_TOKEN:abcdefgh"]
    pieces += ["ApiKey: abcd", "?\u212aey=abc", "&SIG=1", "&ſig=1", "?signature=a", "?auth=b", "?Password=c"]
    pieces += ["bearer abcdefghijklmnopq"]
    pieces += ["api_key=", "=", ":", "?", "abcdefgh", " ", "secret", "ſecret: abcdefgh", "ASIAIOSFODNN7EXAMPLE", "://"]
    pieces += [prefix + "0" * 36 for prefix in ("gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "hf_", "sk-", "xoxp-")]
    chance = random.Random(0)
    texts = ["".join(chance.choices(pieces, k=chance.randint(1, 4))) for _ in range(4000)]
    quickly = [redacted(text) for text in texts]
    monkeypatch.setattr(redaction, "_SIGNS", ("",))  # found in every text
    assert quickly == [redacted(text) for text in texts]
    assert sum(hidden != text for hidden, text in zip(quickly, texts, strict=True)) > 2000


def _texts(tree: ast.AST) -> Iterator[str]:
    """Yield every string constant; in a formatted one, a word replaces each value."""
    formatted = [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)]
    inside = {id(part) for node in formatted for part in node.values}
    for node in formatted:
        yield "".join(str(part.value) if isinstance(part, ast.Constant) else "something" for part in node.values)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            yield node.value


def test_no_message_of_ours_loses_a_word() -> None:
    """`without a password: anyone who ...` was printed as `without a password: *** who ...`."""
    files = [file for file in Path(rlhf_cli.__file__).parent.rglob("*.py") if file.name != "redaction.py"]
    texts = [(file.name, text) for file in files for text in _texts(ast.parse(file.read_text()))]
    assert [(name, text) for name, text in texts if redacted(text) != text] == []
    assert redacted("without a password: anyone") != "without a password: anyone", "it looks for something else"
