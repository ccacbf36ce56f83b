"""Render a model card: metadata for the hub and a page for readers."""

from __future__ import annotations

import json
from pathlib import Path

from huggingface_hub import EvalResult, ModelCardData
from jinja2 import Environment, PackageLoader, StrictUndefined

from rlhf_cli.export.card_facts import CardFacts
from rlhf_cli.export.source_model import Kind
from rlhf_cli.models.config_json import architectures_of
from rlhf_cli.numerics.intervals import Estimate
from rlhf_cli.runs.provenance import weights_hash
from rlhf_cli.runs.run_folder import read_json
from rlhf_cli.runs.text_endings import trained_with_eos

_TASKS: dict[Kind, str] = {
    "policy": "text-generation",
    "reward model": "text-classification",
    "critic": "token-classification",
}


def model_card(folder: Path, kind: Kind, facts: CardFacts, *, name: str) -> str:
    """Return the README.md of an exported folder whose other files exist. Makes no network requests."""
    with_eos = kind == "reward model" and trained_with_eos(folder) is True
    page = Environment(
        loader=PackageLoader("rlhf_cli.export", "."),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # Markdown
    )
    page.filters |= {"cell": _cell, "number": _number, "interval": _interval, "versions": _versions}
    return page.get_template("card.md.jinja").render(
        card_data=_metadata(kind, facts, name).to_yaml(),
        name=name,
        what=_what(kind, facts),
        kind=kind,
        facts=facts,
        place=name,
        prompt=json.dumps("17+5=" if facts.base_model is None else "The capital of France is"),
        architecture=next(iter(architectures_of(read_json(folder / "config.json"))), "the architecture"),
        with_eos=with_eos,
        weights_sha256=weights_hash(folder) or "?",
    )


def _metadata(kind: Kind, facts: CardFacts, name: str) -> ModelCardData:
    results = [
        EvalResult(
            task_type=_TASKS[kind],
            dataset_type=facts.datasets[0] if facts.datasets else "held-out",
            dataset_name=score.rows,
            metric_type=score.metric,
            metric_value=round(score.estimate.mean, 4),
            metric_name=score.metric,
        )
        for score in facts.scores
        if score.estimate.mean is not None
    ]
    return ModelCardData(
        base_model=facts.base_model,
        datasets=facts.datasets or None,
        eval_results=results or None,
        library_name="transformers",
        model_name=name,
        pipeline_tag=_TASKS[kind],
        tags=["rlhf", "trl", facts.trainer.removesuffix("Trainer").lower(), kind.replace(" ", "-")],
    )


def _what(kind: Kind, facts: CardFacts) -> str:
    by = {
        "policy": "A language model, trained",
        "reward model": "A reward model: it gives a text one number, the higher the better. Trained",
        "critic": "A critic: it gives every token of a text the value of what is still to come. Trained",
    }[kind]
    base = (
        f"[{facts.base_model}](https://huggingface.co/{facts.base_model})" if facts.base_model else facts.starting_model
    )
    return f"{by} from {base}, by the experiment `{facts.experiment}` of rlhf."


def _cell(text: object) -> str:
    """Return a text escaped for a cell of a Markdown table."""
    return str(text).replace("|", "\\|").replace("\n", " ")


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _interval(estimate: Estimate) -> str:
    known = estimate.low is not None and estimate.high is not None
    return f"{_number(estimate.low)} to {_number(estimate.high)}" if known else ""


def _versions(versions: dict[str, str]) -> str:
    return ", ".join(f"{package} {version}" for package, version in versions.items())
