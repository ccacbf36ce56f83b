"""What is sampled without dead rows is distributed as the model says, its probabilities multiplied out by hand.

Answers of at most three of four tokens, of which one ends a row, are few enough to count. A pass over prompt and
answer, in float64 and without a cache, says how probable each is; 6,000 draws are held against that by Pearson's chi
square. Its 0.9999 quantile is passed once in ten thousand runs of a right sampler, and the seed is fixed.
"""

from __future__ import annotations

import itertools

import pytest
import torch
from scipy.stats import chi2
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from rlhf_cli.models.decoding.generating import Generating

END, TOKENS, LONGEST, COPIES = 1, (0, 1, 2, 3), 3, 1500
PROMPTS = ([2, 3, 2], [3], [2, 2, 2, 3, 3], [3, 2])
"""Of different lengths, so that rows are padded; each is asked `COPIES` times."""
TEMPERATURE = 0.8
_PAD = 4


def small_model() -> LlamaForCausalLM:
    torch.manual_seed(2)
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=5, **shape)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(8)
    return model


def answers() -> list[tuple[int, ...]]:
    """Every answer there is: it ends with END, or is as long as it may be."""
    found = [ids for n in range(1, LONGEST + 1) for ids in itertools.product(TOKENS, repeat=n)]
    return [ids for ids in found if END not in ids[:-1] and (ids[-1] == END or len(ids) == LONGEST)]


def probabilities(model: LlamaForCausalLM, prompt: list[int]) -> torch.Tensor:
    """Return (answers,) float64: products of softmax(logits / temperature), padding impossible."""
    found = []
    for answer in answers():
        ids = torch.tensor([prompt + list(answer)])
        logits = model.double()(input_ids=ids).logits[0, len(prompt) - 1 : -1] / TEMPERATURE
        logits[:, _PAD] = -torch.inf
        found.append(logits.log_softmax(dim=-1).gather(1, ids[0, len(prompt) :, None]).sum().exp())
    return torch.stack(found).detach()


def counted(model: LlamaForCausalLM, temperature: float) -> torch.Tensor:
    """Return (prompts, answers): how often each was sampled, all prompts in one batch."""
    width = max(map(len, PROMPTS))
    rows = [[_PAD] * (width - len(prompt)) + prompt for prompt in PROMPTS for _ in range(COPIES)]
    mask = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in PROMPTS for _ in range(COPIES)]
    config = GenerationConfig(
        do_sample=True,
        top_k=0,
        temperature=temperature,
        max_new_tokens=LONGEST,
        pad_token_id=_PAD,
        eos_token_id=END,
        suppress_tokens=[_PAD],
        disable_compile=True,
    )
    generating = Generating()
    torch.manual_seed(11)
    with generating.of(model):
        found = model.float().generate(
            input_ids=torch.tensor(rows), attention_mask=torch.tensor(mask), generation_config=config
        )
    assert generating.live.slots.prompt == len(PROMPTS) * width
    assert generating.live.slots.decoded < (LONGEST - 1) * len(rows)
    places = {answer: place for place, answer in enumerate(answers())}
    counts = torch.zeros(len(PROMPTS), len(places), dtype=torch.float64)
    for row, ids in enumerate(found[:, width:].tolist()):
        counts[row // COPIES, places[tuple(token for token in ids if token != _PAD)]] += 1
    return counts


def excess(counts: torch.Tensor, expected: torch.Tensor) -> float:
    """Return Pearson's chi square over its 0.9999 quantile; answers expected fewer than five times count as one."""
    rare = expected < 5
    expected = torch.cat([expected[~rare], expected[rare].sum().reshape(1)])
    counts = torch.cat([counts[~rare], counts[rare].sum().reshape(1)])
    statistic = ((counts - expected) ** 2 / expected.clamp(min=1e-9)).sum()
    return float(statistic / chi2.ppf(0.9999, len(expected) - 1))


@pytest.mark.parametrize(("temperature", "is_right"), [(TEMPERATURE, True), (TEMPERATURE * 1.15, False)])
def test_answers_are_as_frequent_as_they_are_probable(temperature: float, is_right: bool) -> None:
    """The negative control samples at another temperature, which the same counts must give away."""
    model = small_model()
    expected = torch.stack([probabilities(model, prompt) for prompt in PROMPTS])
    torch.testing.assert_close(expected.sum(dim=1), torch.ones(len(PROMPTS), dtype=torch.float64))
    assert ((expected > 0.01).sum(dim=1) >= 5).all()  # no prompt has one answer only
    found = counted(model, temperature)
    worst = max(excess(*pair) for pair in zip(found, COPIES * expected, strict=True))
    assert (worst < 1) is is_right, worst
