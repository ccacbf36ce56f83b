"""Load the rows of section `data` for training and evaluation."""

from __future__ import annotations

from datasets import Dataset

from rlhf_cli.assemble.pair_rows import PreferencePairs
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.data.learnt_columns import only_learnt
from rlhf_cli.data.loading import load_split
from rlhf_cli.data.rows import check_prompts, check_rows, hold_out
from rlhf_cli.data.source import Source
from rlhf_cli.plan.data_sources import eval_sources, training_sources
from rlhf_cli.tables.trl_trainers import TEXT


def training_rows(experiment: Experiment, pairs: PreferencePairs | None) -> tuple[Dataset, Dataset | None]:
    """Return training and held-out rows. Judge pairs first, so that messages use the row numbers of the data."""
    data, row = experiment.data, experiment.trainer.row

    def load(sources: list[Source], name: str) -> Dataset:
        prompt = data.model_dump()["prompt"]
        dataset = load_split(sources, prompt=prompt, seed=experiment.seed, transcripts=data.transcripts)
        return dataset if pairs is None else pairs.judge(dataset, name)

    train = load(training_sources(data), "data")
    held_out: Dataset | None = None
    if data.eval is not None and data.eval.fraction is not None:
        train, held_out = hold_out(train, data.eval.fraction, experiment.seed)
    elif data.eval is not None:
        held_out = load(eval_sources(data), "data.eval")
    if pairs is not None:
        train = pairs.leave_out(train, "data")
        held_out = None if held_out is None else pairs.leave_out(held_out, "data.eval")
    for dataset, name in ((train, "data"), (held_out, "data.eval")):
        if dataset is not None and row.generates:
            check_prompts(dataset, name)
        elif dataset is not None:
            check_rows(dataset, [], name)
    if row.learns_from:
        text_field = str(experiment.trainer.args.get("dataset_text_field") or TEXT)
        train = only_learnt(train, row, text_field=text_field)
        if held_out is not None:
            held_out = only_learnt(held_out, row, text_field=text_field, name="data.eval")
    return train, held_out
