"""Write the model and tokenizer of a GGUF file as a model folder.

`models.gguf.model_folder` starts `python -m rlhf_cli.models.gguf_conversion FILE FOLDER` in a process of its own.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

_OF_THE_FILE = ("quantization_config", "_name_or_path", "_model_name_or_path", "transformers_version")
"""Entries that transformers adds to the configuration of a model that it read from GGUF."""


def convert(file: Path, folder: Path) -> None:
    """Write the model of `file`, dequantised to float32, its tokenizer and chat template into `folder`.

    The model that transformers reads remembers that it was quantised, and refuses to be saved; so its weights move to a
    fresh one of the same configuration. Raise the library's error for a file that it cannot read.
    """
    read = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    values = {key: value for key, value in read.config.to_dict().items() if key not in _OF_THE_FILE}
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    values |= {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**values), dtype=torch.float32)
    model.load_state_dict(read.state_dict())
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
