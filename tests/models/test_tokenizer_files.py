"""What is read from a tokenizer's files is what transformers makes of them: tokens, lengths, chat templates."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import jinja2
import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from rlhf_cli.errors import ModelError
from rlhf_cli.models import tokenizer_files as module
from rlhf_cli.models.tokenizer_files import (
    EMBEDDED_TOKENIZER,
    TokenizerFiles,
    load_tokenizer,
    read_tokenizer,
    render_chat,
    token_ids,
)
from tests.support.model_copies import model_copy

TEXTS = ["17+5=", "", "Grüße, 世界!", "<eos> a <pad>", "x" * 1000]
CONVERSATION = [
    {"role": "system", "content": 'be <short> & "sure"'},
    {"role": "user", "content": "  17+5=  \n"},
    {"role": "assistant", "content": "22"},
    {"role": "user", "content": "sûre?"},
]
TEMPLATES = [
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] | trim }}\n{% endfor %}assistant:",
    "{{ bos_token }}{% for m in messages %}\n    {% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
    "{{ eos_token }}{% endgeneration %}{% else %}[{{ m.role | upper }}] {{ m.content }}{% endif %}\n{% endfor %}",
    "{% for m in messages %}{% if loop.index > 2 %}{% break %}{% endif %}{{ m | tojson }}{% endfor %}"
    "{% if add_generation_prompt %}!{% endif %}{% if tools is none %}?{% endif %}{{ mood | default('plain') }}",
    "{% set ns = namespace(n=0) %}{%- for m in messages -%}{% set ns.n = ns.n + 1 %}{{ ns.n }}{%- endfor -%}",
    "{{ messages | tojson(indent=2) }}{{ messages[3] | tojson(ensure_ascii=true, sort_keys=true) }}"
    "{{ messages[3] | tojson }}{{ strftime_now('%Y') }}",
    "{% set ns = namespace({'a': 1}, b=2) %}{% set ns.c = dict({'d': 3}, e=4) %}{{ ns.a + ns.b }}{{ ns.c }}"
    "{{ dict.fromkeys('fg', 5) }}",
]
END = {"SpecialToken": {"id": "<eos>", "type_id": 0}}
AROUND = {"type": "TemplateProcessing", "single": [END, {"Sequence": {"id": "A", "type_id": 0}}], "pair": []}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose tokenizer begins every text with a token, and was saved after a call that cut and padded."""
    around = AROUND | {"special_tokens": {"<eos>": {"id": "<eos>", "ids": [1], "tokens": ["<eos>"]}}}
    place = tmp_path_factory.mktemp("model") / "model"
    model_copy(place, tokenizer_config={"bos_token": "<pad>"}, tokenizer={"post_processor": around})
    whole = Tokenizer.from_file(str(place / "tokenizer.json"))
    whole.enable_truncation(100)
    whole.enable_padding(length=50)
    whole.save(str(place / "tokenizer.json"))
    return place


@pytest.fixture(scope="module")
def theirs(folder: Path) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(folder)


@pytest.fixture
def ours(folder: Path) -> TokenizerFiles:
    return read_tokenizer(folder, where="model.path")


@pytest.mark.parametrize(
    ("text", "is_twice"), [("<eos>1+2=", True), ("<eos>", True), ("1<eos>", False), ("11", False), ("", False)]
)
def test_a_text_that_begins_with_the_token_that_the_tokenizer_adds(
    ours: TokenizerFiles, theirs: PreTrainedTokenizerBase, text: str, is_twice: bool
) -> None:
    assert (theirs(text)["input_ids"][:2] == [1, 1]) is is_twice
    assert ours.doubled_start(text) == ("<eos>" if is_twice else None)
    assert read_tokenizer(EMBEDDED_TOKENIZER, where="x").doubled_start(text) is None  # which adds nothing


def test_lengths(ours: TokenizerFiles, theirs: PreTrainedTokenizerBase) -> None:
    for special_tokens in (True, False):
        wanted = [len(theirs(text, add_special_tokens=special_tokens)["input_ids"]) for text in TEXTS]
        assert ours.lengths(TEXTS, special_tokens=special_tokens) == wanted
        assert wanted[4] == 1000 + special_tokens


MEASURES = """
import resource, sys
from pathlib import Path
from rlhf_cli.models.tokenizer_files import read_tokenizer
tokenizer = read_tokenizer(Path(sys.argv[1]), where="model.path")
tokenizer.lengths(["warm"], special_tokens=True)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
counts = tokenizer.lengths(["x" * 4_000_000, "ab"], special_tokens=True)
print(counts, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


def test_a_prompt_of_megabytes_is_counted_in_little_memory(folder: Path, theirs: PreTrainedTokenizerBase) -> None:
    """The library itself takes 200 bytes for each byte of a text: 810 MB for this one."""
    done = subprocess.run([sys.executable, "-c", MEASURES, str(folder)], capture_output=True, text=True, check=True)
    counted, _, megabytes = done.stdout.strip().rpartition(" ")
    added = len(theirs("", add_special_tokens=True)["input_ids"])
    assert counted == str([4_000_000 + added, 2 + added])
    assert int(megabytes) < 250


def test_special_tokens_vocabulary_and_templates(
    folder: Path, ours: TokenizerFiles, theirs: PreTrainedTokenizerBase
) -> None:
    """A configured template replaces that of the files."""
    assert (ours.special("eos_token"), ours.special("pad_token")) == (theirs.eos_token, theirs.pad_token)
    assert ours.tokens == theirs.get_vocab()
    assert ours.surely_lacks("unk_token")
    own = {"fields": {}}
    other = read_tokenizer(folder, where="model.path", template="{{ 1 }}", response_template=own)
    for mine, read in ((ours, theirs), (other, load_tokenizer(str(folder), "{{ 1 }}", own))):
        assert mine.chat_template == read.chat_template
        assert mine.settings["response_template"] == read.response_template
    assert (other.chat_template, other.settings["response_template"]) == ("{{ 1 }}", own)


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_conversation_is_written_as_transformers_does(
    ours: TokenizerFiles, theirs: PreTrainedTokenizerBase, template: str
) -> None:
    special = {name: str(ours.special(name)) for name in ("bos_token", "eos_token", "pad_token")}
    for settings in ({}, {"mood": "gay"}):
        asked = {"chat_template": template, "tokenize": False, "add_generation_prompt": True, **settings}
        wanted = theirs.apply_chat_template(CONVERSATION, **asked)
        assert render_chat(template, CONVERSATION, special, settings) == wanted


def test_what_a_configuration_says_of_a_model() -> None:
    """Its tokens and its context, which a model of images has in its language part, and its labels."""
    for config, said in (
        ({"vocab_size": 7, "max_position_embeddings": 8}, (7, 8)),
        ({"vocab_size": 1, "text_config": {"vocab_size": 7, "n_positions": 8}}, (7, 8)),
        ({"vocab_size": "7", "max_position_embeddings": None}, (None, None)),
    ):
        assert (module.vocab_size_of(config), module.context_of(config)) == said
    scorer = {"architectures": ["OwnForSequenceClassification", "Own"]}
    three = {"id2label": {"0": "a", "1": "b", "2": "c"}, "num_labels": 4}
    for config, labels in ((scorer | three, 3), (scorer | {"num_labels": 1}, 1), (scorer, 2), ({}, None)):
        assert module.num_labels_of(config) == labels
    assert module.num_labels_of({"architectures": ["OwnForCausalLM"]}) is None


def test_tokens_of_a_vocabulary_and_those_that_were_added() -> None:
    """A Unigram model lists its tokens with their scores, others map them; an added token's id goes before."""
    added = [{"content": "<a>", "id": 7}, {"content": "y", "id": 8}, "?"]
    assert token_ids({"model": {"vocab": {"x": 0, "y": 1}}, "added_tokens": added}) == {"x": 0, "y": 8, "<a>": 7}
    assert token_ids({"model": {"vocab": [["x", -1.5], ["y", -2.0]]}}) == {"x": 0, "y": 1}
    assert token_ids({"model": {"vocab": "?"}, "added_tokens": {"<a>": 7}}) == {}


def test_what_the_files_say_of_the_end() -> None:
    """The token, whether there is surely none, and the token that no text ends with for a reader of scores."""
    for settings, expected in (
        ({"eos_token": {"content": "</s>"}}, ("</s>", False, "</s>")),
        ({"eos_token": "</s>", "pad_token": "</s>"}, ("</s>", False, "</s>")),
        ({"eos_token": "</s>", "pad_token": "<pad>"}, ("</s>", False, None)),
        *(({"eos_token": token}, (None, True, None)) for token in (None, "", 3, {"content": ""})),
        ({"pad_token": "<pad>", "tokenizer_class": "LlamaTokenizer"}, (None, False, None)),
        ({"tokenizer_class": "PreTrainedTokenizerFast"}, (None, True, None)),
    ):
        files = TokenizerFiles(Path(), settings, "here")
        assert (files.special("eos_token"), files.surely_lacks("eos_token"), files.unread_end) == expected


def test_a_template_is_a_text_or_a_file_of_at_most_a_million_bytes(tmp_path: Path) -> None:
    file = tmp_path / "chat"
    for text in ("x" * 1_000_000, "{{ x }}"):
        file.write_text(text)
        assert module.chat_template_text(str(file), where="here") == text
    assert module.chat_template_text("{{ y }}", where="here") == "{{ y }}"
    for content, got in (
        ("x" * 1_000_001, "[Errno 27] 1,000,001 bytes, more than 1,000,000"),
        ("{{ x }}\n{{ x", "line 2: unexpected end of template"),
        ("{{" + "(" * 3000, "line 1: nested too deeply"),
    ):
        file.write_text(content)
        with pytest.raises(ModelError) as caught:
            module.chat_template_text(str(file), where="here")
        assert (caught.value.where, str(caught.value.got).startswith(f"{file}: {got}")) == ("here", True)


def test_a_template_reaches_nothing_of_python() -> None:
    for template in (
        "{{ messages.__class__.__mro__ }}",
        "{% set ns = namespace() %}{% set ns.__class__ = messages %}",
        "{{ namespace(__init__=1) }}",
        "{{ dict.mro() }}",
    ):
        with pytest.raises((jinja2.exceptions.SecurityError, jinja2.exceptions.UndefinedError)):
            render_chat(template, CONVERSATION, {})
    with pytest.raises(jinja2.TemplateError, match=r"^no system$"):
        render_chat("{{ raise_exception('no system') }}", CONVERSATION, {})


def test_where_a_template_stands(tmp_path: Path) -> None:
    listed = [{"name": "tool_use", "template": "a"}, {"name": "default", "template": "b"}]
    for given, wanted in (({"chat_template": "one"}, "one"), ({"chat_template": listed}, "b"), ({}, None)):
        folder = model_copy(tmp_path / str(wanted), without=("chat_template.jinja",), tokenizer_config=given)
        assert read_tokenizer(folder, where="model.path").chat_template == wanted


@pytest.mark.parametrize("in_files", [True, False])
def test_tools_have_a_template_of_their_own_as_in_transformers(tmp_path: Path, in_files: bool) -> None:
    named = {"tool_use": "a{{ 1 }}", "default": "b"}
    given = {} if in_files else {"chat_template": named}
    folder = model_copy(tmp_path / "model", without=("chat_template.jinja",), tokenizer_config=given)
    for name, text in named.items() if in_files else ():
        (folder / "additional_chat_templates").mkdir(exist_ok=True)
        (folder / "additional_chat_templates" / f"{name}.jinja").write_text(text)
    read, theirs = read_tokenizer(folder, where="model.path"), AutoTokenizer.from_pretrained(folder)
    assert read.chat_template == "b"
    for tools in (None, [], [{"name": "add"}]):
        assert read.template_with(tools) == theirs.get_chat_template(tools=tools)


def test_a_tokenizer_that_lacks_something_is_named_with_another_one_to_type() -> None:
    for error, lacks in ((module.no_end_token, "eos_token"), (module.no_chat_template, "chat_template")):
        made: Any = error("folder", where="here")
        found = ["folder" in made.got, lacks in made.expected, "model.tokenizer=" in made.hint]
        assert (made.where, found) == ("here", [True] * 3)


def test_a_damaged_one_names_the_key_or_the_file(tmp_path: Path) -> None:
    folder = model_copy(tmp_path / "model")
    (folder / "tokenizer.json").write_text("{}")
    (file := folder / "chat_template.jinja").write_bytes("é".encode("latin-1"))
    with pytest.raises(ModelError) as caught:
        read_tokenizer(folder, where="model.tokenizer").lengths(["a"], special_tokens=False)
    assert caught.value.where == "model.tokenizer"
    with pytest.raises(ModelError) as caught:
        _ = read_tokenizer(folder, where="model.path").chat_template
    assert (caught.value.where, str(file) in str(caught.value.got)) == ("model.path", True)
