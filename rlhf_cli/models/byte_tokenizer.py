"""The byte tokenizer of the embedded tiny policy, and its templates. Importing it loads no torch."""

from __future__ import annotations

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

PAD, EOS = "<pad>", "<eos>"

_CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] + ': ' + message['content'] }}"
    "{% for call in message['tool_calls'] or [] %}{{ '[' + call['function']['name'] }}"
    "{% for key, value in call['function']['arguments'].items() %}"
    "{{ ' ' if loop.first else ';' }}{{ key }}={{ value }}{% endfor %}{{ ']' }}{% endfor %}"
    "{{ eos_token + '\\n' if message['tool_calls'] else '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)
_RESPONSE_TEMPLATE = {
    "defaults": {"role": "assistant"},
    "start_anchor": "assistant: ",
    "fields": {
        "tool_calls": {
            "open_pattern": r"\[(?P<name>[A-Za-z_]\w*) ?",
            "close": "]",
            "repeats": True,
            "content": "kv-lines",
            "content_args": {"line_sep": ";", "kv_sep": "="},
            "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
        },
        "content": {"close_pattern": rf"{EOS}|$", "content": "text", "content_args": {"strip": False}},
    },
}
"""How a call in an answer is read back, `[add a=1;b=2]`."""


def byte_tokenizer(context_tokens: int) -> PreTrainedTokenizerFast:
    """Return a tokenizer of 258 tokens: padding, end of sequence, 256 bytes. `context_tokens`: its longest text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate([PAD, EOS, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        padding_side="left",
        model_max_length=context_tokens,
        chat_template=_CHAT_TEMPLATE,
        response_template=_RESPONSE_TEMPLATE,
    )
