"""Secrets for a run to keep, and a search through every byte that it leaves behind."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pyarrow.parquet
import pytest

from tests.support.small_runs import SMALL

ENVIRONMENT = {
    "HF_TOKEN": "hf_planted0123456789abcdefghij",
    "WANDB_API_KEY": "local-0123456789abcdef0123456789abcdef01234567",
    "AWS_SECRET_ACCESS_KEY": "awsSecret/planted+44",
    "JUDGE_KEY": "judgekey-planted88",
    "JUDGE_URL": "https://me:judgepassw99@judge.example/v1?api_key=querykey66",
    "SERVER": "http://them:serverpassw33@vllm.example:8000",
    "NOTES": "a note that tells noteplanted55",
    "SALT": "promptplanted22",
    "my_api_key": "lowerplanted77",
    "password": "passwordplanted11",
    "store_url": "redis://me:urlplanted00@store.example:6379/0",
}
NEEDLES = (
    *("hf_planted0123456789", "0123456789abcdef0123456789abcdef", "awsSecret", "judgekey-planted88", "judgepassw99"),
    *("querykey66", "serverpassw33", "noteplanted55", "promptplanted22"),
    *("lowerplanted77", "passwordplanted11", "urlplanted00"),
)
"""The parts of them that a search looks for."""

REWARD = """
import logging, os

class Telling:
    __name__ = "telling"

    def __init__(self, api_key, url, fails_at=None):
        self.api_key, self.url, self.fails_at = api_key, url, fails_at

    def __call__(self, prompts, completions, log_extra=None, trainer_state=None, **columns):
        said = f"asking {self.url} with {self.api_key}"
        print(said, os.environ["AWS_SECRET_ACCESS_KEY"])
        logging.getLogger("mine").warning("%s and %s", said, os.environ["HF_TOKEN"])
        logging.getLogger("mine").info("%s, %s", os.environ["WANDB_API_KEY"], os.environ["AWS_SECRET_ACCESS_KEY"])
        lower = f"{os.environ['my_api_key']} {os.environ['password']} {os.environ['store_url'][11:23]}"
        print(lower)
        logging.getLogger("mine").warning(lower)
        said += lower
        log_extra("asked", [said] * len(prompts))
        if self.fails_at is not None and trainer_state.global_step >= self.fails_at:
            if not os.path.exists("mended"):
                raise RuntimeError(said)
            with open("key", "w") as file:
                file.write(self.api_key)
        return [float(len(str(completion))) for completion in completions]
"""

WORDS = [
    *SMALL,
    *("track=wandb_offline", "trainer.args.save_steps=1", "trainer.args.logging_steps=2"),
    "+rewards.told.fn=./telling.py:Telling",
    *("rewards.told.args.api_key=${oc.env:JUDGE_KEY}", "rewards.told.args.url=${oc.env:JUDGE_URL}"),
    *("track.notes=${oc.env:NOTES}", "track.tags=['${oc.env:SALT}']", "data.prompt='${oc.env:SALT} {prompt}'"),
    *("trainer.args.vllm_server_base_url=${oc.env:SERVER}", "rewards.brevity.weight=0"),
]
"""A small run that is given all of them."""


def plant(place: Path, patch: pytest.MonkeyPatch) -> None:
    """Put the secrets into the environment, and a reward that tells all it knows into the folder."""
    for name, value in ENVIRONMENT.items():
        patch.setenv(name, value)
    (place / "telling.py").write_text(REWARD)
    for words in (["init", "-q"], ["remote", "add", "origin", "https://me:gitpassw11@example.org/x.git"]):
        subprocess.run(["git", *words], cwd=place, check=True)


def tellers(folder: Path, needles: tuple[str, ...] = (*NEEDLES, "gitpassw11")) -> dict[str, set[str]]:
    """Needle -> the files of a folder in which it stands, archives and tables unpacked, wandb's own file decoded."""
    found: dict[str, set[str]] = {}
    for file in (path for path in folder.rglob("*") if path.is_file()):
        content = b"\n".join(_contents(file))
        for needle in needles:
            if needle.encode() in content:
                found.setdefault(needle, set()).add(file.relative_to(folder).as_posix())
    return found


def _contents(file: Path) -> list[bytes]:
    contents = [str(file).encode(), file.read_bytes()]
    if zipfile.is_zipfile(file):  # what torch saves; what is stored as it is lies in the file's own bytes
        with zipfile.ZipFile(file) as archive:
            packed = [one for one in archive.infolist() if one.compress_type != zipfile.ZIP_STORED]
            contents += [archive.read(one) for one in packed]
    if file.suffix == ".parquet":
        contents.append(json.dumps(pyarrow.parquet.read_table(file).to_pylist(), default=str).encode())
    if file.suffix == ".wandb":
        command = [Path(sys.executable).with_name("wandb"), "leet", "inspect", "--json", file]
        contents.append(subprocess.run(command, capture_output=True, check=True).stdout)
    return contents
