"""Check the logins for the hub and wandb, and whether the hub answers. Never returns a token."""

from __future__ import annotations

import netrc
import os
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path

from rlhf_cli.doctor.condition import Condition, State

_AREA = "network"
_TIMEOUT_S = 2.0
_TRUE = ("1", "true", "yes", "on")
_WANDB = "https://api.wandb.ai"


def hub_login_condition() -> Condition:
    """Return whether there is a token for the hub, and where it comes from."""
    from huggingface_hub import get_token

    if get_token() is None:
        found = "no token: public models and data can be read, gated ones and --push cannot"
        return Condition(_AREA, "hub login", State.MISSING, found, "hf auth login, or a token in HF_TOKEN")
    variable = next((name for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN") if os.environ.get(name)), None)
    return Condition(_AREA, "hub login", State.OK, f"a token, from {variable or 'hf auth login'}")


def wandb_login_condition() -> Condition:
    """Return whether there is a key for wandb, and where it comes from."""
    mode = os.environ.get("WANDB_MODE", "")
    if mode in ("offline", "disabled", "dryrun"):
        return Condition(_AREA, "wandb login", State.OK, f"not needed: WANDB_MODE={mode}")
    if os.environ.get("WANDB_API_KEY"):
        return Condition(_AREA, "wandb login", State.OK, "a key, from WANDB_API_KEY")
    host = urllib.parse.urlsplit(os.environ.get("WANDB_BASE_URL") or _WANDB).hostname or ""
    file = Path(os.environ.get("NETRC") or "~/.netrc").expanduser()
    try:
        known = netrc.netrc(file).authenticators(host) if file.is_file() else None
    except (netrc.NetrcParseError, OSError, UnicodeDecodeError) as error:
        what = f"{file} cannot be read ({type(error).__name__})"
        return Condition(_AREA, "wandb login", State.UNFIT, what, "wandb login")
    if known is not None:
        return Condition(_AREA, "wandb login", State.OK, f"a key for {host}, from {file}")
    found = "no key: runs are recorded offline (track=wandb_offline), and sent later by rlhf sync"
    return Condition(_AREA, "wandb login", State.MISSING, found, "wandb login, or a key in WANDB_API_KEY")


def hub_condition(reach: Callable[[str, float], str | None] | None = None) -> Condition:
    """Return whether the hub answers within two seconds."""
    if os.environ.get("HF_HUB_OFFLINE", "").lower() in _TRUE:
        return Condition(_AREA, "hub", State.OK, "not asked: HF_HUB_OFFLINE is set, what is in the cache can be used")
    address = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    began = time.monotonic()
    trouble = (reach or trouble_reaching)(address, _TIMEOUT_S)
    host = urllib.parse.urlsplit(address).hostname or address
    if trouble is None:
        return Condition(_AREA, "hub", State.OK, f"{host} answered in {time.monotonic() - began:.1f} s")
    found = f"{host}: {trouble}; models and data come from the cache, or from files"
    fix = "export HF_HUB_OFFLINE=1, which saves the waits; behind a proxy its address in HTTPS_PROXY"
    return Condition(_AREA, "hub", State.WARN, found, fix)


def trouble_reaching(address: str, timeout_s: float) -> str | None:
    """Return why a server does not answer in time, or None if it answers anything at all."""
    outcome: list[str | None] = []

    def ask() -> None:
        request = urllib.request.Request(address, method="HEAD")
        try:
            with urllib.request.urlopen(request, timeout=timeout_s):
                outcome.append(None)
        except urllib.error.HTTPError:
            outcome.append(None)
        except (OSError, ValueError) as error:
            outcome.append(str(getattr(error, "reason", error)))

    # A DNS lookup has no timeout, so leave its thread behind if it takes too long.
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(timeout_s)
    return outcome[0] if outcome else f"no answer within {timeout_s:g} s"
