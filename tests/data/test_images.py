"""Where the pictures of rows lie, and what of a column is no picture's path."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from rlhf_cli.data.images import opened, with_images
from rlhf_cli.data.rows import RowTable
from rlhf_cli.data.source import DataSource
from rlhf_cli.evaluation.score_completions import read_completions, score_each
from rlhf_cli.plan.prepare import prepare


@pytest.mark.parametrize("path", ["p/1.png", "https://host.invalid/1.png", "/pics/1.png", None, {"bytes": b""}])
def test_a_path_is_seen_from_the_folder_of_its_data_file(workplace: Path, path: object, refusal) -> None:
    for folder in ("a", "b"):
        (workplace / folder).mkdir()
        (workplace / folder / "rows.jsonl").write_text("{}\n")

    def table(path: object) -> RowTable:
        return RowTable([{"prompt": "q", "image": path, "images": [path]}], ("prompt", "image", "images"))

    whole = str(workplace / "a" / "p/1.png") if path == "p/1.png" else path
    assert with_images(table(path), DataSource(path="a/rows.jsonl"))[0] == table(whole)[0]
    of_both = DataSource(path="*/rows.jsonl", name="data.eval")  # beside which of the two?
    if whole == path:
        assert with_images(table(path), of_both)[0] == table(path)[0]
    else:
        error = refusal(with_images, table(path), of_both)
        assert (error.where, str(error.got)[:7]) == ("data.eval.path", "p/1.png")


@pytest.mark.parametrize("value", ["nowhere.png", "iVBORw0KGgo" * 500, "nul\0", 5, None])
def test_what_is_no_file_is_left_as_it_is(value: object) -> None:
    """Pictures in base64 are longer than a file's name may be."""
    assert opened({"image": value, "images": [value]}) == {"image": value, "images": [value]}


def test_a_reward_gets_opened_pictures_as_in_training() -> None:
    Path("d").mkdir()
    Image.new("RGB", (2, 3)).save("d/p.png")
    Path("d/c.jsonl").write_text('{"prompt": "q", "completion": "a", "image": "p.png"}\n')
    Path("mine.py").write_text("def wide(completions, image, **columns): return [one.width for one in image]\n")
    experiment = prepare(["exp=quickstart", "~rewards.correct", "rewards.wide.fn=./mine.py:wide"]).experiment
    (row,) = read_completions(Path("d/c.jsonl"), limit=None, experiment=experiment)
    assert score_each(experiment, [[row]])[0].rows[0].rewards["wide"].raw == 2
