"""What a run writes into its log.txt, and what it keeps off the screen."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlhf_cli.cli import main
from rlhf_cli.runs.run_folder import RunFolder
from rlhf_cli.trainers.assemble.policy_loading import quantization
from rlhf_cli.trainers.checkpoint_mixin import _is_plain
from tests.support.small_runs import SMALL

WARNING = "data.eval: all 4"


def test_shared_prompts_and_trls_tables_are_in_the_log(
    place: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    eval_words = ["data.eval.world=toy_sums", "data.eval.args.num_rows=4", "data.args.max_value=1"]
    printed = ["trainer.args.log_completions=true", "trainer.args.num_completions_to_print=1"]
    words = [*SMALL, "run.name=one", "data.eval.args.max_value=1", "trainer.args.max_steps=1", *eval_words, *printed]
    assert main(["train", *words]) == 0
    log = RunFolder(place / "runs/quickstart/one").log.read_text()
    assert caplog.text.count(WARNING) == 1
    table = "┴──┴"  # its columns are too narrow for their names
    assert table in log
    assert table not in capsys.readouterr().out


def test_only_plain_values_are_saved_with_a_checkpoint() -> None:
    """Others could be read back only by unpickling, which can run code."""
    assert _is_plain({"a": [1, "x", None, {"b": (True, 0.5)}]})
    for value in ({1: "x"}, {"a": object()}, {"a": {"b": [object()]}}, [object()]):
        assert not _is_plain(value), value


def test_quantised_as_qlora_says() -> None:
    """Dettmers et al. (arXiv 2305.14314), section 3: 4-bit NormalFloat, double quantisation; 8 bits: LLM.int8()."""
    four, eight = (quantization(bits).to_dict() for bits in ("4bit", "8bit"))
    assert (four["load_in_4bit"], four["load_in_8bit"]) == (True, False)
    assert (four["bnb_4bit_quant_type"], four["bnb_4bit_use_double_quant"]) == ("nf4", True)
    assert (eight["load_in_4bit"], eight["load_in_8bit"]) == (False, True)
