"""Request chat completions from an OpenAI-compatible server, using the official client.

The client builds the requests; `http_client` decides on retries, timeouts and servers, so the client's own retries and
timeouts are off. It is imported with the first request, to keep `rlhf check` fast.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
from typing import TypedDict, Unpack

import httpx2

from rlhf_cli.errors import RewardError
from rlhf_cli.remote.http_client import JsonClient

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
                "a judge is asked by the openai package, which is not installed",
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
