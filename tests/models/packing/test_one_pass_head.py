"""The one-pass head against autograd through log_softmax in float64, and against TRL's chunks in float32."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import Tensor
from trl.kernels import ChunkedLogProbFunction
from trl.trainer import utils as trl_utils

from rlhf_cli.models.packing import one_pass_head as subject
from rlhf_cli.models.packing.one_pass_head import OnePassLogProbs, one_pass_head
from tests.support.float64 import no_float32
from tests.support.tolerances import assert_close, assert_equal

N, H, V = 7, 5, 11


def tensors(dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(N, H), (V, H), (V,)]
    return [torch.randn(shape, generator=generator).to(dtype).requires_grad_() for shape in shapes]


TARGETS = torch.tensor([0, 10, 3, 3, 7, 1, 5])
WEIGHTS = torch.linspace(-1, 2, N), torch.linspace(0.5, -1, N)
"""Of log-probabilities and of entropies in the loss."""


def by_autograd(hidden: Tensor, weight: Tensor, bias: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
    logits = scale * (hidden @ weight.t() + (bias if bias is not None else 0))
    logps = logits.log_softmax(dim=1)
    return logps.gather(1, TARGETS.unsqueeze(1)).squeeze(1), -(logps.exp() * logps).sum(dim=1)


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("scale", [1.0, 2.0, 1 / 0.7, 1 / 1.6])
@pytest.mark.parametrize("of", ["both", "log-probabilities", "entropies"])
def test_values_and_gradients(has_bias: bool, scale: float, of: str) -> None:
    with no_float32():
        compare_with_autograd(torch.float64, has_bias, scale, of)
    compare_with_autograd(torch.float32, has_bias, scale, of)


def compare_with_autograd(dtype: torch.dtype, has_bias: bool, scale: float, of: str) -> None:
    """In float64 the formula is tested, in float32 what a run computes."""
    same = assert_equal if dtype is torch.float64 else assert_close
    hidden, weight, bias = tensors(dtype)
    given = hidden, weight, bias if has_bias else None
    found = OnePassLogProbs.apply(*given, TARGETS, scale, True, True)
    exact = [one.detach().double().requires_grad_() for one in (hidden, weight, bias)]
    expected = by_autograd(exact[0], exact[1], exact[2] if has_bias else None, scale)
    for one, other in zip(found, expected, strict=True):
        same(one, other)

    def loss(values: tuple[Tensor, Tensor]) -> Tensor:
        parts = [(weights * value).sum() for weights, value in zip(WEIGHTS, values, strict=True)]
        return {"both": parts[0] + parts[1], "log-probabilities": parts[0], "entropies": parts[1]}[of]

    loss(found).backward()
    loss(expected).backward()
    for one, other in list(zip((hidden, weight, bias), exact, strict=True))[: 3 if has_bias else 2]:
        same(one.grad, other.grad)


@pytest.mark.parametrize("trained", [{"hidden"}, {"weight"}, {"hidden", "weight"}], ids=sorted)
def test_what_is_frozen_keeps_no_gradient_from_the_rest(trained: set[str]) -> None:
    """Under an adapter the head is frozen and its states are not; the head alone may be trained, too."""
    hidden, weight, _ = (one.detach() for one in tensors())
    names = {"hidden": hidden, "weight": weight}
    exact = {name: one.double() for name, one in names.items()}
    for name in trained:
        names[name].requires_grad_()
        exact[name].requires_grad_()
    with one_pass_head(has_entropy=True):
        log_probs, entropy, *_ = getattr(trl_utils, subject._SEAM).apply(
            hidden, weight, None, TARGETS, 0.7, 8, None, 1.0, ("log_probs", "entropy")
        )
    (log_probs.sum() + entropy.sum()).backward()
    sum(one.sum() for one in by_autograd(exact["hidden"], exact["weight"], None, 1 / 0.7)).backward()
    for name in names:
        assert (names[name].grad is None) == (name not in trained)
        if name in trained:
            assert_close(names[name].grad, exact[name].grad)


def test_a_probability_of_nothing_has_no_gradient_but_its_own() -> None:
    """p log p is 0 where p is: a token that a bias of -200 rules out leaves every gradient a number."""
    hidden, weight, bias = tensors()
    with torch.no_grad():
        bias[2] = -200.0
    log_probs, entropy = OnePassLogProbs.apply(hidden, weight, bias, TARGETS, 1.0, True, True)
    (log_probs.sum() + entropy.sum()).backward()
    assert all(one.grad.isfinite().all() for one in (hidden, weight))


@pytest.mark.parametrize("has_entropy", [True, False])
def test_a_second_backward_pass_gives_the_same(has_entropy: bool) -> None:
    """As torch's own log_softmax does: what was kept for the first is as it was."""
    hidden, weight, _ = tensors()
    log_probs, entropy = OnePassLogProbs.apply(hidden, weight, None, TARGETS, 0.5, True, has_entropy)
    loss = log_probs.sum() + (entropy.sum() if has_entropy else 0)
    loss.backward(retain_graph=True)
    loss.backward()
    exact = [one.detach().double().requires_grad_() for one in (hidden, weight)]
    expected = by_autograd(exact[0], exact[1], None, 0.5)
    (2 * (expected[0].sum() + (expected[1].sum() if has_entropy else 0))).backward()
    for one, other in zip((hidden, weight), exact, strict=True):
        assert_close(one.grad, other.grad)


class _Stopped(torch.autograd.Function):
    """Passes no gradient on."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        return values.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> None:
        return None


def test_where_no_gradient_comes_in_none_goes_out() -> None:
    hidden, weight, bias = tensors()
    log_probs, entropy = OnePassLogProbs.apply(hidden, weight, bias, TARGETS, 1.0, True, True)
    (_Stopped.apply(log_probs).sum() + _Stopped.apply(entropy).sum()).backward()
    assert [one.grad for one in (hidden, weight, bias)] == [None] * 3


class TestTheSeam:
    def test_trl_calls_it_so(self) -> None:
        """TRL's fused forward looks it up in its module, and calls its `apply` with nine arguments."""
        assert trl_utils._ChunkedLogProbFunction is ChunkedLogProbFunction
        assert "_ChunkedLogProbFunction.apply(" in inspect.getsource(trl_utils.add_fused_lm_head)
        names = list(inspect.signature(ChunkedLogProbFunction.forward).parameters)[1:]
        assert names == [
            *("hidden", "weight", "bias", "targets", "temperature", "chunk_size", "final_logit_softcapping"),
            *("logit_scale", "outputs"),
        ]

    @staticmethod
    def call(outputs: tuple[str, ...] = ("log_probs", "entropy"), softcap: float | None = None) -> Any:
        hidden, weight, bias = tensors()
        return trl_utils._ChunkedLogProbFunction.apply(hidden, weight, bias, TARGETS, 0.7, 32, softcap, 2.0, outputs)

    def test_it_gives_what_trl_gives(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(subject, "MAX_SOFTMAX_BYTES", N * V * 4)  # just enough
        expected = self.call()
        with one_pass_head(has_entropy=True):
            found = self.call()
        assert "OnePass" in type(found[0].grad_fn).__name__
        for one, other in zip(found[:2], expected[:2], strict=True):
            assert_close(one, other)
        assert found[2:] == (None, None, None)
        assert trl_utils._ChunkedLogProbFunction is ChunkedLogProbFunction

    @pytest.mark.parametrize("why", ["a soft cap", "another output", "too large", "shards of ZeRO-3"])
    def test_trl_s_chunks_are_taken(self, monkeypatch: pytest.MonkeyPatch, why: str) -> None:
        if why == "too large":
            monkeypatch.setattr(subject, "MAX_SOFTMAX_BYTES", N * V * 4 - 1)
        if why == "shards of ZeRO-3":
            monkeypatch.setattr(torch.Tensor, "ds_status", "available", raising=False)
        outputs = ("log_probs", "entropy", *(["is_top1"] if why == "another output" else []))
        with one_pass_head(has_entropy=True):
            found = self.call(outputs, softcap=30.0 if why == "a soft cap" else None)
        assert "Chunked" in type(found[0].grad_fn).__name__
        with one_pass_head(has_entropy=False):
            log_probs, entropy, *_ = self.call(outputs, softcap=30.0 if why == "a soft cap" else None)
        assert (torch.equal(log_probs, found[0]), entropy) == (True, None)
