"""Score by a language model: send a filled rubric per row to an OpenAI-compatible server, and parse the reply."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from rlhf_cli.errors import RewardError
from rlhf_cli.rewards.completion_text import Completion, content_text, text_of
from rlhf_cli.services.http_client import JsonClient, Post, ReplyCache, together
from rlhf_cli.text.template_grammar import is_text, parse
from rlhf_cli.user_files import cache_folder

Parsed = TypeVar("Parsed")
_SCORE = r"(?:score|rating)[\"']?\s*(?:\([^()]*\))?\s*[:=]\s*(-?\d+(?:\.\d+)?)"


@dataclass(eq=False, repr=False)
class Judge:
    """A judge that scores rows by a language model, mapped to 0..1.

    Each row is one request to `URL/chat/completions`. Equal requests are sent once, and replies are cached on disk. A
    row gets None if a column that the rubric names is null.

    Args:
        url: of the API (`https://HOST/v1`), or a list of equivalent URLs, which are used in turn.
        model: the name of the model on that server.
        rubric: the question: text with `{prompt}`, `{completion}` and any dataset column; `{{` and `}}` are braces.
        score_pattern: regular expression, case ignored, whose first group is the score; its last match counts.
        scale: the lowest and highest score, which become 0 and 1. A score outside, or no score, is an error.
        temperature: of the reply; 0 gives the most probable one.
        max_tokens: limit on the length of the reply.
        system: a system message before the rubric, or None.
        api_key_env: name of the environment variable that holds the key.
        timeout_s: limit for one attempt.
        retry_budget_s: limit for one row with all attempts; 429, 5xx and lost connections are retried.
        max_concurrency: number of simultaneous requests.
        cache: false sends every request again.
        cache_dir: the folder of the cache; None = `judge` in the cache folder of rlhf.
    """

    url: str | list[str]
    model: str
    rubric: str
    score_pattern: str = _SCORE
    scale: Sequence[float] = (0, 10)
    temperature: float = 0.0
    max_tokens: int = 256
    system: str | None = None
    api_key_env: str | None = None
    timeout_s: float = 60.0
    retry_budget_s: float = 120.0
    max_concurrency: int = 8
    cache: bool = True
    cache_dir: str | None = None
    answer_field = "completion"  # without a type it is no argument

    def __post_init__(self) -> None:
        if len(self.scale) != 2 or not self.scale[0] < self.scale[1]:
            what, expected = "the scale has no range", "[lowest, highest]"
            raise RewardError(what, where="args.scale", got=list(self.scale), expected=expected)
        try:
            self._pattern = re.compile(self.score_pattern, re.IGNORECASE)
        except (re.error, TypeError) as error:
            what = f"the score pattern is no regular expression: {error}"
            raise RewardError(what, where="args.score_pattern") from error
        if self._pattern.groups < 1:
            what, expected = "the score pattern has no group", r"a group that matches the number: score: (\d+)"
            raise RewardError(what, where="args.score_pattern", got=self.score_pattern, expected=expected)
        # Its columns become parameters of the reward, so their names must be identifiers.
        self._template = parse(self.rubric, where="args.rubric", error=RewardError, only_identifiers=True)
        if self.answer_field not in self._template.columns:
            what = f"the rubric does not contain the {self.answer_field}"
            expected = f"a text with {{{self.answer_field}}} in it"
            raise RewardError(what, where="args.rubric", got=self.rubric[:200], expected=expected)
        self._columns = [name for name in self._template.columns if name not in ("prompt", self.answer_field)]
        self._client = JsonClient.of(self, path="/chat/completions")
        folder = Path(self.cache_dir).expanduser() if self.cache_dir else cache_folder("judge")
        self._cache = ReplyCache(folder) if self.cache else None
        kind = inspect.Parameter
        parameters = [kind(name, kind.POSITIONAL_OR_KEYWORD) for name in ("prompts", "completions")]
        parameters += [kind(name, kind.KEYWORD_ONLY) for name in self._columns]
        # So that missing columns are noticed before training starts.
        self.__signature__ = inspect.Signature([*parameters, kind("columns", kind.VAR_KEYWORD)])

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model}, {self._client})"

    async def __call__(
        self, prompts: Sequence[Completion], completions: Sequence[Completion], **columns: Sequence[object]
    ) -> Sequence[float | RewardError | None]:
        """Return a score per row, in 0..1, or None if a column is null. Raise RewardError if a reply has no score."""
        asked: dict[str, int] = {}  # rubric text -> the first row with it
        rows: list[str | None] = []
        for row, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
            values = {name: columns[name][row] for name in self._columns}
            values |= {"prompt": prompt_text(prompt), "completion": text_of(completion)}
            text = self._filled(values, row)
            rows.append(text)
            if text is not None:
                asked.setdefault(text, row)
        async with self._client.session() as post:
            replies = [self._reply(post, text, row, partial(self._parsed, row)) for text, row in asked.items()]
            scores = await together(replies)
        score_of = dict(zip(asked, scores, strict=True))
        return [None if text is None else score_of[text] for text in rows]

    def _filled(self, values: Mapping[str, object], row: int) -> str | None:
        """Return the rubric for one row, or None if a column is null. Raise RewardError for one that is no text."""
        for name in self._template.columns:
            if values[name] is None:
                return None
            if not is_text(values[name]):
                what, got = f"the column {name!r} cannot be put into a rubric", f"a {type(values[name]).__name__}"
                raise RewardError(what, where=f"args.rubric, row {row}", got=got, expected="text or a number")
        return self._template.fill(values)

    async def _reply(self, post: Post, text: str, row: int, parsed: Callable[[str, str], Parsed]) -> Parsed:
        """Return what `parsed(reply, finish)` makes of the reply to a text; the reply may be from the cache."""
        messages = [{"role": "user", "content": text}]
        if self.system is not None:
            messages.insert(0, {"role": "system", "content": self.system})
        request = {"model": self.model, "temperature": self.temperature, "max_tokens": self.max_tokens}
        request |= {"messages": messages}
        key = {"urls": sorted(self._client.urls), **request}
        reply = self._cache.read(key) if self._cache else None
        if reply is not None:
            return parsed(reply, "")
        match answer := await post(request):
            case {"choices": [{"message": {"content": str(reply)}, **others}, *_]}:
                score = parsed(reply, str(others.get("finish_reason") or ""))
            case _:
                where, expected = f"row {row}, {self!r}", '{"choices": [{"message": {"content": "..."}}]}'
                what, got = "the judge's answer has no text", repr(answer)[:300]
                raise RewardError(what, where=where, got=got, expected=expected)
        if self._cache:  # cache readable replies only, so that a bad one is requested again
            self._cache.write(key, reply)
        return score

    def _matches(self, reply: str) -> list[re.Match[str]]:
        """Return what the pattern matches behind a judge's thoughts; nothing if it is still thinking at the end."""
        said = reply.rpartition("</think>")[2]
        said = "" if "<think>" in said else said
        return list(self._pattern.finditer(said)) or list(self._pattern.finditer(said.replace("*", "")))

    def _parsed(self, row: int, reply: str, finish: str) -> float:
        low, high = map(float, self.scale)
        where, got = f"row {row}, {self!r}", ends_of(reply)
        matches = self._matches(reply)
        try:
            score = float(matches[-1][1])
        except (IndexError, TypeError, ValueError):
            what, expected = "the judge's reply has no score", f"text that matches {self._pattern.pattern}"
            raise RewardError(what, where=where, got=got, expected=expected, advice=advice_for(finish)) from None
        if not low <= score <= high:
            what = f"the judge's score {score:g} is not on the scale"
            raise RewardError(what, where=where, got=got, expected=f"{low:g} to {high:g}")
        return (score - low) / (high - low)


def ends_of(reply: str) -> str:
    """Return a reply as errors show it: a long one without its middle."""
    return reply if len(reply) <= 300 else f"{reply[:150]} ... {reply[-150:]}"


def advice_for(finish: str) -> str:
    """Return how to get a reply that can be read; `finish` is why the judge stopped."""
    is_cut = finish == "length"
    return "raise args.max_tokens: the reply was truncated" if is_cut else "let the rubric say how to answer"


def prompt_text(prompt: Completion) -> str:
    """Return a text unchanged, one message as its content, several as `role: content` lines."""
    if isinstance(prompt, str):
        return prompt
    if len(prompt) == 1:
        return content_text(prompt[0])
    return "\n".join(f"{message.get('role', 'user')}: {content_text(message)}" for message in prompt)
