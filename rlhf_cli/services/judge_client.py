"""Ask an OpenAI-compatible server, fill a rubric, keep replies on disk.

The client builds the requests; `http_client` decides on retries, timeouts and servers, so the client's own retries and
timeouts are off. It is imported with the first request, to keep `rlhf check` fast.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict, Unpack

import httpx2

from rlhf_cli.errors import RewardError
from rlhf_cli.services.http_client import JsonClient
from rlhf_cli.text.template_grammar import is_text, parse

_PATH = "/chat/completions"


class _Options(TypedDict, total=False):
    """The options of a JsonClient besides urls and path."""

    api_key_env: str | None
    timeout_s: float
    retry_budget_s: float
    max_concurrency: int


class ChatClient(JsonClient):
    """A JsonClient whose `post` takes the arguments of a chat completion: `model`, `messages` and its parameters."""

    def __init__(self, url: str | list[str], **options: Unpack[_Options]) -> None:
        if importlib.util.find_spec("openai") is None:
            raise RewardError(
                "a judge needs the openai package, which is not installed",
                where="rlhf_cli.rewards.judge:Judge",
                hint="pip install 'rlhf-cli[judge]'",
            )
        super().__init__(url, path=_PATH, **options)

    async def post(self, payload: object) -> object:
        """Return the server's answer to a chat completion as JSON. Raises RewardError as `JsonClient.post` does."""
        # The import takes most of a second; do it before the timeout and the retry budget start.
        importlib.import_module("openai")
        return await super().post(payload)

    async def _send(self, client: httpx2.AsyncClient, url: str, body: bytes) -> httpx2.Response:
        import openai

        at, key = httpx2.URL(url), self._key()
        api = openai.AsyncOpenAI(
            base_url=at.copy_with(path=at.path.rstrip("/").removesuffix(_PATH), query=None),
            default_query=dict(at.params),
            api_key="sent below",
            max_retries=0,
            timeout=None,
            http_client=client,
        )
        # Otherwise the client fills these from its own environment variables (OPENAI_API_KEY, OPENAI_ORG_ID). A key
        # must go only to the server that the configuration names for it.
        headers = {
            "Authorization": f"Bearer {key}" if key else openai.omit,
            "OpenAI-Organization": openai.omit,
            "OpenAI-Project": openai.omit,
        }
        try:
            answer = await api.chat.completions.with_raw_response.create(**json.loads(body), extra_headers=headers)
        except openai.APIStatusError as error:
            return error.response
        except openai.APIConnectionError as error:
            raise error.__cause__ or error from None
        response: httpx2.Response = answer.http_response
        return response


_GIVEN = ("prompt", "completion")


class Rubric:
    """A parsed rubric.

    Raises RewardError for a malformed text, and for one without `{completion}`.
    """

    def __init__(self, text: str) -> None:
        # Its columns become parameters of the reward, so their names must be identifiers.
        self._template = parse(text, where="args.rubric", error=RewardError, only_identifiers=True)
        if "completion" not in self._template.columns:
            raise RewardError(
                "the rubric does not show the judge the completion",
                where="args.rubric",
                got=text[:200],
                expected="a text with {completion} in it",
            )
        self.columns = [name for name in self._template.columns if name not in _GIVEN]

    def fill(self, values: Mapping[str, object], row: int) -> str | None:
        """Return the text for one row, or None if one of its columns is null.

        Raises RewardError for a missing column or one that is neither text nor a number; `row` is its index, for the
        message.
        """
        for name in self._template.columns:
            if name not in values:
                raise RewardError(
                    f"no column {name!r} in the data",
                    where="args.rubric",
                    expected=f"one of {', '.join(values)}",
                )
            if values[name] is None:
                return None
            if not is_text(values[name]):
                raise RewardError(
                    f"the column {name!r} cannot be put into a rubric",
                    where=f"args.rubric, row {row}",
                    got=f"a {type(values[name]).__name__}",
                    expected="text or a number",
                )
        return self._template.fill(values)


class ReplyCache:
    """A cache that several processes can share: files are renamed into place, so each is whole or absent."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, request: Mapping[str, object]) -> str | None:
        """Return the reply to an equal request, or None if it is missing or unreadable."""
        try:
            reply = json.loads(self._file(request).read_text(encoding="utf-8"))["reply"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return reply if isinstance(reply, str) else None

    def write(self, request: Mapping[str, object], reply: str) -> None:
        """Store a reply. A full or read-only disk is ignored, so that the run continues."""
        file = self._file(request)
        with contextlib.suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            descriptor, beside = tempfile.mkstemp(dir=file.parent, suffix=".new")
            try:
                with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace") as stream:
                    json.dump({"model": request["model"], "reply": reply}, stream, ensure_ascii=False)
                os.replace(beside, file)
            except BaseException:
                os.unlink(beside)
                raise

    def _file(self, request: Mapping[str, object]) -> Path:
        digest = hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()
        return self._folder / digest[:2] / f"{digest}.json"
