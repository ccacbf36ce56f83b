"""Render a conversation with a tokenizer's chat template, like transformers but without importing it.

`transformers.utils.chat_template_utils` defines the variables of a template; a test compares the two.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment


class _Generation(Extension):
    """A jinja2 extension that ignores `{% generation %}`, the block around an assistant's text."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's own attribute

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return the content of the block."""
        next(parser.stream)
        return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))


def render_chat(
    template: str,
    messages: Sequence[Mapping[str, object]],
    special_tokens: Mapping[str, str],
    settings: Mapping[str, object] | None = None,
) -> str:
    """Return a conversation as a text that ends with the generation prompt.

    `special_tokens` are `bos_token` and the like, `settings` further template variables. Raise jinja2.TemplateError if
    the template is malformed or rejects the conversation.
    """
    given = {"add_generation_prompt": True, "tools": None, "documents": None, **special_tokens, **(settings or {})}
    return _compiled(template).render(messages=messages, **given)


@cache
def _compiled(template: str) -> jinja2.Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment.from_string(template)


def _to_json(value: object, ensure_ascii: bool = False, indent: int | None = None, sort_keys: bool = False) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, sort_keys=sort_keys)


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
