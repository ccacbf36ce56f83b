"""How far the gradient of a ragged GRPO step of SmolLM2 is from the exact one: ours, TRL's, and with known mistakes.

    make real && OMP_NUM_THREADS=1 python -m scripts.bench.exact_gradient [--rows 8]

The exact one is TRL's padded pass with the whole model, loss and backward pass in float64, from the same weights,
advantages and answers, which every side samples in float32. A mistake is made in the first row of every pass.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import pad
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LlamaForCausalLM, Trainer

from rlhf_cli.models.packing import packed_rows
from scripts.bench.step_sides import SIDES, Step, in_a_fork, ours, stock
from scripts.bench.whole_step import make_real, off_by, step_of


class _Float64(TorchDispatchMode):
    """Keep float64 where a model asks for float32: in its norms, its rotary angles and its loss."""

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        return func(*args, **(named | {"dtype": torch.float64} if named.get("dtype") is torch.float32 else named))


def _around(owner: Any, name: str, call: Callable[..., Any]) -> None:
    """Replace a method by `call`, which gets the method first."""
    method = getattr(owner, name)
    setattr(owner, name, lambda *given, **named: call(method, *given, **named))


def _exactly(method: Any, *given: Any, **named: Any) -> Any:
    with _Float64():
        return method(*given, **named)


def _sampled(generate: Any, model: Any, *given: Any, **named: Any) -> Any:
    found = generate(model.float(), *given, **named)
    model.double()
    return found


def _padded(score: Any, model: Any, ids: Any, mask: Any, *more: Any, **named: Any) -> Any:
    return score(model, pad(ids, (16, 0)), pad(mask, (16, 0)), *more, **named)


def _without_first(score: Any, model: Any, ids: Any, mask: Any, *more: Any, **named: Any) -> Any:
    hidden = torch.cat([mask[:1] * (mask[:1].cumsum(1) > 1), mask[1:]])
    return score(model, ids, hidden, *more, **named)


def _late(pack: Any, *given: Any, **named: Any) -> Any:
    rows = pack(*given, **named)
    if torch.is_grad_enabled():  # the trial of packed rows, without a gradient, would find it
        rows.position_ids[0, rows.starts[0] + 1 : rows.starts[0] + rows.lengths[rows.num_prompts]] += 1
    return rows


def side(
    train_side: Callable[[Step], None], *, exact: bool = True, score: Any = None, pack: Any = None
) -> Callable[[Step], None]:
    """Return a side that trains in float64 if `exact`, with another `score` of rows or `pack`."""

    def begin(train: Any, trainer: Any, *given: Any, **named: Any) -> Any:
        if exact:
            _around(trainer, "_compute_loss", _exactly)
            _around(trainer.accelerator, "backward", _exactly)
        if score is not None:
            _around(trainer, "_get_per_token_logps_and_entropies", score)
        return train(trainer, *given, **named)

    def run(step: Step) -> None:
        _around(Trainer, "train", begin)
        if exact:
            _around(LlamaForCausalLM, "generate", _sampled)
        if pack is not None:
            _around(packed_rows, "packed_rows", pack)
        train_side(step)

    return run


EXACT, TRL = "TRL, float64", "TRL, float32"
FOUND = {
    EXACT: side(stock),
    TRL: stock,
    "ours, float32": ours,
    "TRL, float32, 16 more columns of padding": side(stock, exact=False, score=_padded),
    "TRL, float32, micro-batches of 4": stock,
    "ours, float64": side(ours),
    "ours, float64, positions of an answer one too high": side(ours, pack=_late),
    "ours, float64, a prompt without its first token": side(ours, score=_without_first),
}


def main() -> None:
    """Print how far each side is from TRL's float64 and from its float32 gradient, over the norm of that gradient."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=8)
    options = parser.parse_args()
    torch.set_num_threads(1)
    os.environ |= {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    SIDES.update(FOUND)
    with tempfile.TemporaryDirectory() as temporary:
        make_real(Path(temporary, "real"))
        os.environ |= {"RLHF_CACHE": f"{temporary}/cache", "HF_DATASETS_CACHE": f"{temporary}/datasets"}
        step = step_of("smollm2_ragged", Path(temporary), 0)
        step = replace(step, lengths=step.lengths[: options.rows])
        files = {name: Path(temporary, name) for name in FOUND}
        for name, file in files.items():
            taken = in_a_fork(name, replace(step, micro_batch=4) if "of 4" in name else step, file)
            off = [f"{off_by(file, files[other]):.2g}" for other in (EXACT, TRL) if files[other].exists()]
            print(f"{name}: {' '.join(off)} (answers {taken.check}, {taken.step_s:.0f} CPU s)", flush=True)


if __name__ == "__main__":
    main()
