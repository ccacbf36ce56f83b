"""Under ZeRO-3 transformers loads models in shards; only models beside the engine are loaded unsharded."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
from transformers import TrainingArguments
from transformers.integrations import deepspeed

from rlhf_cli.models.loading import loading_unsharded


class Zero3:
    """All that `from_pretrained` asks of the configuration which it finds, before it makes shards."""

    def is_zero3(self) -> bool:
        return True


@pytest.fixture(params=["hf_deepspeed_config", "dschf"])
def args(request: pytest.FixtureRequest):
    """TrainingArguments with ZeRO-3 on: by their own argument, or by accelerate's file, whose plugin has it."""
    zero = Zero3()
    deepspeed.set_hf_deepspeed_config(zero)
    made = SimpleNamespace(deepspeed_plugin=SimpleNamespace(), **{})
    setattr(made if request.param == "hf_deepspeed_config" else made.deepspeed_plugin, request.param, zero)
    yield cast(TrainingArguments, made)
    deepspeed.unset_hf_deepspeed_config()


def test_whole_inside_and_in_shards_again_outside(args: TrainingArguments) -> None:
    assert deepspeed.is_deepspeed_zero3_enabled()
    with loading_unsharded(args):
        assert not deepspeed.is_deepspeed_zero3_enabled()
    assert deepspeed.is_deepspeed_zero3_enabled()


def test_in_shards_again_when_loading_failed(args: TrainingArguments) -> None:
    with pytest.raises(OSError, match="no such model"), loading_unsharded(args):
        raise OSError("no such model")
    assert deepspeed.is_deepspeed_zero3_enabled()


def test_without_it_nothing_is_touched(tmp_path) -> None:
    plain = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, bf16=False)
    with loading_unsharded(plain):
        assert not deepspeed.is_deepspeed_zero3_enabled()
    assert not deepspeed.is_deepspeed_zero3_enabled()
