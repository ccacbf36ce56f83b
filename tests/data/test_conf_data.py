"""The shipped files of `conf/data`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from omegaconf import OmegaConf

from rlhf_cli.data.loading import load_split
from rlhf_cli.data.peeking import peek
from rlhf_cli.data.preparing import template_columns
from rlhf_cli.data.rows import check_rows
from rlhf_cli.data.source import DataSource

FILES = sorted((Path(__file__).resolve().parents[2] / "conf" / "data").glob("*.yaml"))
SOURCE_KEYS = {"world", "args", "path", "subset", "split", "revision", "rename", "select", "weight"}


def content_of(file: Path) -> dict[str, Any]:
    """Return the file's keys over those of the files that it is based on."""
    content = yaml.safe_load(file.read_text())
    bases = [content_of(file.with_stem(base)) for base in content.pop("defaults", []) if base != "_self_"]
    merged = OmegaConf.to_container(OmegaConf.merge(*bases, content))
    return cast(dict[str, Any], merged)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_file(file: Path) -> None:
    text = file.read_text()
    assert 3 <= len(text.splitlines()) <= 15
    assert text.startswith("# ")
    content = content_of(file)
    assert set(content) <= SOURCE_KEYS | {"mix", "transcripts", "prompt", "eval"}
    prompt, _ = content.pop("prompt", None), content.pop("eval", None)
    assert content.pop("transcripts", False) == (file.stem == "hh_rlhf")
    columns_line = next((line for line in text.splitlines() if line.startswith("# columns: ")), "")
    if prompt is not None:
        assert all(column in columns_line for column in template_columns(prompt))
    source = DataSource(**content)
    if file.stem == "file":
        assert content["path"] == "???"
    elif source.world is None:
        assert "hub dataset" in peek(source).origin
    else:
        if source.world == "reasoning_gym":
            pytest.importorskip("reasoning_gym", reason="pip install 'rlhf-cli[reasoning]'")
        dataset = load_split([source], prompt=prompt, seed=0)
        assert len(dataset) == content["args"]["num_rows"]
        assert all(column in columns_line for column in dataset.column_names)
        check_rows(dataset, dataset.column_names)
