"""Answer prompts as a run with tools, an environment or a rollout function does: by its own trainer's evaluation."""

from __future__ import annotations

import tempfile
import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.reward_sections import Sampling
from rlhf_cli.config.schema.trainer_sections import PpoArgs
from rlhf_cli.data.source import Row
from rlhf_cli.evaluation.score_completions import EndOfRun, Interact, refuse_uncallable_rewards
from rlhf_cli.runs.heartbeat import Heartbeat
from rlhf_cli.runs.run_folder import RunFolder

_OF_TRAINING = (
    *("generation_batch_size", "sync_ref_model", "lr_scheduler_type", "lr_scheduler_kwargs", "load_best_model_at_end"),
    *("metric_for_best_model", "push_to_hub", "log_completions_hub_repo"),
)
"""Arguments of TRL's that an evaluation does not need, and that need others which it sets."""

if TYPE_CHECKING:
    from rlhf_cli.evaluation.evaluation_results import PartAnswers


def interaction(experiment: Experiment) -> Interact | None:
    """Return how such a run answers prompts, None for a run whose model generates an answer in one piece."""
    return interactive_answers if experiment.interacts else None


def interactive_answers(
    model: Path, experiment: Experiment, rows: list[Row], each: int, batch_size: int, end: EndOfRun
) -> tuple[dict[str, PartAnswers], str | None]:
    """Return the greedy and the `each` sampled answers to every row by decoding mode, scored as at the run's `end`, in
    the order of the rows.

    Also return why no answer has a total, None if they have. `batch_size` counts completions. Raise RewardError or
    DataError before sampling if a reward cannot be called.
    """
    from transformers import PrinterCallback

    from rlhf_cli.evaluation.evaluation_results import settled_answers
    from rlhf_cli.plan.stack_building import aggregate_of
    from rlhf_cli.runs.run_folder import GREEDY, SAMPLED
    from rlhf_cli.trainers.assemble.trainer import assemble

    refuse_uncallable_rewards(rows, experiment)
    settled: list[tuple[dict[str, PartAnswers], str | None]] = []
    with tempfile.TemporaryDirectory() as place, warnings.catch_warnings():
        # What the libraries say to each other; a training writes it into its log.
        warnings.filterwarnings("ignore", category=FutureWarning, module=r"(transformers|trl)\b")
        folder = RunFolder(Path(place))
        evaluated, beat = _only_evaluated(experiment, model, max(1, each), batch_size), Heartbeat(folder.path, 0)
        trainer = assemble(evaluated, folder, on_progress=lambda _: None, on_pairs=lambda _: None, heartbeat=beat)
        setup = trainer.extensions.rewards
        assert setup is not None
        stack = setup.stack
        stack.keep_failure = None  # the folder is gone when a message shows its file

        def collect(by_mode: dict[str, PartAnswers], *_: object) -> dict[str, float | None]:
            weights, aggregate = stack.weights(end.step, end.max_steps), aggregate_of(experiment)
            settled.append(
                settled_answers(by_mode, stack.components, weights, aggregate=aggregate, running=end.running)
            )
            return {}

        trainer.extensions = replace(trainer.extensions, rewards=replace(setup, sum_up=collect))
        trainer.state.global_step, trainer.state.max_steps = end.step, end.max_steps
        trainer.remove_callback(PrinterCallback)
        try:
            # A list, because a Dataset made of it would give each message the keys of all messages.
            columns = dict.fromkeys(name for row in rows for name in row)
            trainer.evaluate(cast(Any, [columns | row for row in rows]))
            # TRL shuffles the rows of an evaluation, by the seed.
            places = list(cast(Any, trainer)._get_eval_sampler(rows))[:: max(1, each)]
        finally:
            stack.close()
    kept = (GREEDY, SAMPLED) if each else (GREEDY,)
    ((parts, no_total),) = settled
    return {name: parts[name].in_order(places) for name in kept}, no_total


def _only_evaluated(experiment: Experiment, model: Path, each: int, batch_size: int) -> Experiment:
    """Return the experiment for a trainer of one process that only evaluates: without critic, adapter and reference."""
    from rlhf_cli.evaluation.evaluation_run import named_files

    trainer, left_out = experiment.trainer, {*PpoArgs.model_fields, *_OF_TRAINING}
    args = {name: value for name, value in trainer.args.items() if name not in left_out}
    args |= dict.fromkeys(("num_generations", "per_device_train_batch_size"), 2)
    args |= dict.fromkeys(("gradient_accumulation_steps", "steps_per_generation", "num_iterations"), 1)
    args |= {"num_generations_eval": each, "per_device_eval_batch_size": each * max(1, batch_size // each)}
    args |= {"beta": 0.0, "max_steps": 1, "log_completions": False, "eval_strategy": "no", "save_strategy": "no"}
    of_model = {"path": str(model), "build": None, "lora": None, "quantize": None, **named_files(model, experiment)}
    of_launch = {"processes": 1, "strategy": "ddp", "rollout": "hf", "rollout_gpus": 0}
    return experiment.model_copy(
        update={
            "trainer": trainer.model_copy(update={"args": args, "baseline": "group", "dense": False}),
            "model": experiment.model.model_copy(update=of_model),
            "launch": experiment.launch.model_copy(update=of_launch),
            "truncation": experiment.truncation.model_copy(update={"policy": "none"}),
            **dict.fromkeys(("critic", "kl", "advantages")),
            "sampling": Sampling(),
        }
    )
