"""A vision-language model of a few thousand random weights, and rows with images, made without a network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from transformers import AutoTokenizer
from transformers.models.clip import CLIPImageProcessorPil
from transformers.models.llava import LlavaConfig, LlavaForConditionalGeneration, LlavaProcessor

from rlhf_cli.models.tokenizer_files import EMBEDDED_TOKENIZER

PART = "{{ '<image>' if part['type'] == 'image' else part['text'] }}"
TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}: {% for part in m['content'] %}" + PART + "{% endfor %}{{ eos_token }}"
    "{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
)
COLOURS = {"red": (255, 0, 0), "green": (0, 255, 0), "blue": (0, 0, 255)}
SIZES = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2}
REWARD = """
def sees(completions, image, **columns):
    pixels = [one.getpixel((0, 0)) for one in image]
    return [sum(map(ord, text[0]["content"])) % 7 + max(pixel) / 255 for text, pixel in zip(completions, pixels)]
"""


def write_model(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(EMBEDDED_TOKENIZER)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    size = {"size": {"shortest_edge": 16}, "crop_size": {"height": 16, "width": 16}}
    given: dict[str, Any] = {"patch_size": 8, "vision_feature_select_strategy": "default", "chat_template": TEMPLATE}
    LlavaProcessor(CLIPImageProcessorPil(**size), tokenizer, num_additional_image_tokens=1, **given).save_pretrained(
        folder
    )
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    text = {"model_type": "llama", "num_hidden_layers": 1, "vocab_size": len(tokenizer), **ends}
    vision = {"model_type": "clip_vision_model", "num_hidden_layers": 2, "image_size": 16, "patch_size": 8}
    torch.manual_seed(0)
    config = LlavaConfig(
        text_config=text | SIZES,
        vision_config=vision | SIZES,
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        vision_feature_layer=-1,
    )
    LlavaForConditionalGeneration(config).save_pretrained(folder)


def rows_in(folder: Path, **changed: object) -> list[dict[str, Any]]:
    """Write eight images and `rows.jsonl`, which names them from its folder; an image column of None is left out."""
    (folder / "seen").mkdir(parents=True, exist_ok=True)
    rows = []
    for number in range(8):
        pixel = list(COLOURS.values())[number % 3]
        Image.new("RGB", (20 + number, 30), pixel).save(folder / "seen" / f"{number}.png")
        row = {"prompt": [{"role": "user", "content": "Which?"}], "image": f"seen/{number}.png"} | changed
        rows.append({name: value for name, value in row.items() if value is not None})
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (folder / "rewards.py").write_text(REWARD, encoding="utf-8")
    return rows
