"""Check rows with images: the trainer takes them, the processor can be loaded, and every row has its images."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from io import BytesIO
from typing import Any

from rlhf_cli.data.images import images_of, in_parts
from rlhf_cli.data.rendering import TEMPLATE_ERRORS
from rlhf_cli.data.rows import RowTable
from rlhf_cli.errors import ConfigError, DataError, in_a_line
from rlhf_cli.models.tokenizer_files import TokenizerFiles
from rlhf_cli.plan.checks.facts import DataFacts, Findings, Subject
from rlhf_cli.plan.row_tokens import rendered
from rlhf_cli.tables.trl_trainers import IMAGES
from rlhf_cli.text.json_values import without_images

_DECODED = 64
"""In how many rows of a source the images are decoded to their ends; of others, only the beginning is read."""


def image_problems(subject: Subject, data: DataFacts) -> Findings:
    """Yield an error for all that keeps images from a model that reads them; another model is refused with its rows."""
    experiment, trainer, where = subject.experiment, subject.experiment.trainer, subject.where
    column = next((name for name in IMAGES if any(name in read.columns for read in data.sources)), None)
    if column is None:
        return
    if trainer.has_critic or "images" not in trainer.row.along:
        what, expected = f"trainer={trainer.name} does not train on images", "trainer=grpo, rloo, sft or dpo"
        advice = f"take such a trainer; data.rename.picture={column} reads the texts alone"
        yield ConfigError(what, where="data", got=column, expected=expected, advice=advice)
        return
    refused = {"packing", "padding_free", "precompute_ref_log_probs"}
    instead = {f"trainer.args.{name}": "false" for name in sorted(refused) if trainer.setting(name) is True}
    instead |= {"launch.rollout": "hf"} if experiment.launch.rollout == "continuous" else {}
    instead |= {"sampling.keep_groups": "null"} if experiment.sampling.keep_groups is not None else {}
    for key, value in instead.items():
        yield ConfigError(f"{key} takes no images", where=where(key), got=column, hint=f"{key}={value}")
    reads_videos = "video_token_id" in subject.folders.config_below(experiment.model.path)
    for module, package in [("PIL", "pillow"), *[("torchvision", "torchvision")] * reads_videos]:
        if importlib.util.find_spec(module) is None:
            what = f"the model's processor needs the package {package}, which is not installed"
            yield ConfigError(what, where=where("model.path"), hint=f"pip install {package}")
    for read in data.sources if importlib.util.find_spec("PIL") is not None else ():
        rows = read.rows or RowTable([], [])
        for number in range(len(rows)):
            if wrong := _wrong(rows[number], subject.tokenizer, decodes=number < _DECODED):
                place = f"{read.source.name}, row {number + 1} (the first row is 1)"
                yield read.source.with_file(DataError(wrong[0], where=place, got=wrong[1], expected=wrong[2]))
                break


def _wrong(row: Mapping[str, Any], tokenizer: TokenizerFiles | None, *, decodes: bool) -> tuple[str, ...]:
    """Return the problem with the images of a row, their value and the expected one; empty without a problem."""
    import PIL.Image

    images, asked = images_of(row), row.get("prompt", row.get("messages", row.get("conversations")))
    for image in images if isinstance(row.get("images", []), list) else [row["images"]]:
        stored = image if isinstance(image, Mapping) else {"path": image}
        try:
            with PIL.Image.open(stored["path"] if stored.get("bytes") is None else BytesIO(stored["bytes"])) as opened:
                if decodes:
                    opened.load()
        except Exception as error:
            expected = "a path, seen from the folder of the data file, or the bytes of a whole image in Parquet"
            return "an image cannot be read", f"{in_a_line(error):.200}, of {without_images(image)!r:.80}", expected
    if not isinstance(asked, list):
        return "images need messages", f"{asked!r:.80}", "data.prompt='[{role: user, content: \"{prompt}\"}]'"
    messages = in_parts(asked, len(images))
    texts = [{**one, "content": [part for part in one["content"] if part["type"] != "image"]} for one in messages]
    places = sum(len(one["content"]) - len(text["content"]) for one, text in zip(messages, texts, strict=True))
    if places != len(images):
        return "the messages have places for another number of images", f"{places} for {len(images)}", "one for each"
    try:
        if images and tokenizer is not None and rendered(messages, tokenizer, {}) == rendered(texts, tokenizer, {}):
            return "the chat template leaves out the image", f"{asked!r:.80}", "a template for images"
    except TEMPLATE_ERRORS as error:
        return "the chat template does not take messages with images", repr(error), "a template for images"
    return ()
