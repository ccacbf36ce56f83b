"""List bounds, choices and refused combinations of TRL's arguments, and what TRL passes to a reward.
No docstring has them, and TRL refuses such a value after it has loaded the model, or never. Tests compare the rows with
the installed libraries.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import not_
from typing import NamedTuple


@dataclass(frozen=True)
class Range:
    """The bounds of one argument, each None if there is no such bound. `why` says what enforces them. `strategy` names
    the argument that has to be `steps` for this one to be used, None if it is always used. With one, a value below 1 is
    a share of the run, and any other a number of steps.
    """

    name: str
    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None
    why: str = ""
    strategy: str | None = None

    def holds(self, value: float) -> bool:
        """Return whether a value is within the bounds; -0.0 is below 0, and takes a sign with it."""
        is_minus_zero = value == 0 and math.copysign(1, value) < 0
        return (
            (self.at_least is None or (value >= self.at_least and not is_minus_zero))
            and (self.above is None or value > self.above)
            and (self.at_most is None or value <= self.at_most)
            and (self.below is None or value < self.below)
            and (self.strategy is None or value < 1 or value == int(value))
        )

    def in_words(self) -> str:
        """Return the bounds in words: `at least 0 and below 1`."""
        bounds = (("at least", self.at_least), ("above", self.above), ("at most", self.at_most), ("below", self.below))
        words = [f"{word} {bound:g}" for word, bound in bounds if bound is not None]
        return " and ".join(words) + ", and whole from 1 on" * (self.strategy is not None)


_ADAM = "torch.optim.AdamW takes no other"
_STEPS, _EVENTS = "transformers takes no other", ("logging", "eval", "save")
_COUNT, _SHARE = "it is a number of them", "it is a share"
SIZES = (
    *("per_device_train_batch_size", "gradient_accumulation_steps", "generation_batch_size", "steps_per_generation"),
    *("num_iterations", "per_device_eval_batch_size", "num_generations_eval"),
)
"""The arguments that say how many rows, or batches, are taken at a time."""
_COUNTS = (*SIZES, "num_beams", "ref_model_sync_steps", "max_length", "pad_to_multiple_of")

RANGES: tuple[Range, ...] = (
    Range("learning_rate", at_least=0, why="a step goes against the gradient"),
    Range("temperature", above=0, why="scores are divided by it; next to 0 every answer of a group is the same"),
    Range("top_p", above=0, at_most=1, why="it is a share of the probability"),
    Range("min_p", at_least=0, at_most=1, why="it is a share of the largest probability"),
    Range("top_k", at_least=0, why="it is a number of tokens; 0 keeps all"),
    Range("repetition_penalty", above=0, why="scores are divided by it; 1 is none"),
    *(Range(name, at_least=1, why="an answer has a token") for name in ("max_completion_length", "max_new_tokens")),
    *(Range(name, at_least=1, why=_COUNT) for name in _COUNTS),
    Range("num_return_sequences", at_least=1, at_most=1, why="num_generations says how many answers a prompt gets"),
    Range("vllm_group_port", at_least=1, at_most=65535, why="it is a port of TCP"),
    Range("warmup_steps", at_least=0, why=_STEPS),
    Range("max_steps", at_least=1, why="a run takes a step; without it, num_train_epochs decides"),
    Range("beta", at_least=0, why="below 0 it pays for leaving the reference"),
    Range("epsilon", at_least=0, why="it is the width of a range around a ratio of 1"),
    Range("epsilon_high", at_least=0, why="it is the width of a range above a ratio of 1"),
    *(Range(name, at_least=0, at_most=1, why=_SHARE) for name in ("ref_model_mixup_alpha", "top_entropy_quantile")),
    Range("label_smoothing", at_least=0, below=0.5, why="it is the share of wrong labels, less than half"),
    Range("max_grad_norm", at_least=0, why="it is a length; 0 does not clip"),
    *(Range(name, at_least=0, below=1, why=_ADAM) for name in ("adam_beta1", "adam_beta2")),
    *(Range(name, at_least=0, why=_ADAM) for name in ("adam_epsilon", "weight_decay")),
    Range("dataloader_num_workers", at_least=0, why="torch's DataLoader takes no other"),
    Range("dataloader_prefetch_factor", at_least=1, why="torch's DataLoader takes no other"),
    *(Range(f"{what}_steps", above=0, why=_STEPS, strategy=f"{what}_strategy") for what in _EVENTS),
)

FOLLOW_EVALUATIONS = ("reduce_lr_on_plateau", "greedy")  # schedules that follow the evaluations, not the steps


class Refusal(NamedTuple):
    """A combination that is refused at `key`: `why`, and what to type `instead`.

    `values`: argument -> its value, or a function that says whether a value is meant; `key` itself is on. `losses` is
    the set of losses; `trainer`, `use_cpu`, `uses_lora`, `generates` and the like are facts that others decide.
    """

    key: str
    values: Mapping[str, object]
    why: str
    instead: str

    def holds(self, value_of: Callable[[str], object]) -> bool:
        """Return whether the arguments have these values."""
        given = ((wanted, value_of(name)) for name, wanted in {self.key: bool, **self.values}.items())
        return all(wanted(value) if callable(wanted) else value == wanted for wanted, value in given)


def _lacks_one(kwargs: object) -> bool:
    """Return whether not exactly one of min_lr and min_lr_rate is given."""
    return not isinstance(kwargs, dict) or ("min_lr" in kwargs) == ("min_lr_rate" in kwargs)


def _is_malformed(optim_args: object) -> bool:
    """Return whether transformers cannot read the text."""
    return bool(optim_args) and any(part.count("=") != 1 for part in str(optim_args).split(","))


_MIN, _MAX, _MODE = (f"vllm_importance_sampling_{end}" for end in ("clip_min", "clip_max", "mode"))
_SYNC, _EVERY, _AHEAD = "sync_ref_model", "train_sampling_strategy", "precompute_ref_log_probs"
_NO_BETA = {"beta": 0, _AHEAD: lambda ahead: ahead is not None}  # DPO and KTO; CPO and TPO learn the chosen answer
_RATE, _WORKERS, _UNUSED = "lr_scheduler_kwargs", "dataloader_num_workers", "remove_unused_columns"
_STEPS_A_ROUND, _SCHEDULE = "steps_per_generation", "lr_scheduler_type"
_SMOOTHING, _KIND, _AOT = "label_smoothing", "teacher_model_kind", {"aot", "aot_unpaired"}
_GALORE = ("galore_adamw", "galore_adamw_8bit", "galore_adafactor", "apollo_adamw")
_LOW_RANK = tuple(f"{name}{end}" for end in ("", "_layerwise") for name in _GALORE)
_NO_TARGETS = {"optim": _LOW_RANK.__contains__, "optim_target_modules": None}
_OF_UPLOADS = ("model_id", "strategy", "private_repo", "always_push", "revision")
_NO_MAXIMUM, _FILLED = {"max_length": None}, "it fills rows up to max_length, which is null"
_UNLIMITED, _ANSWER = {"max_length": None, "trainer": "IWOPDTrainer"}, "max_completion_length"
_UNBOUNDED = {_MODE: ("token_truncate", "sequence_truncate").__contains__, _MIN: None, _MAX: None}
_OTHER_ORDER = {_EVERY: lambda strategy: strategy != "sequential", "losses": {"kto"}}
_LAST_RATE = {"lr_scheduler_type": lambda name: str(name).endswith("with_min_lr"), "lr_scheduler_kwargs": _lacks_one}
_NO_DECAY = {
    "lr_scheduler_type": "warmup_stable_decay",
    "lr_scheduler_kwargs": lambda kwargs: not isinstance(kwargs, dict) or "num_decay_steps" not in kwargs,
}
_FOLLOWING = {"lr_scheduler_type": FOLLOW_EVALUATIONS.__contains__, "eval_strategy": "no"}
_BEST = {"save_strategy": "best", "metric_for_best_model": None}
REFUSALS = (
    Refusal("generation_batch_size", {_STEPS_A_ROUND: bool}, f"{_STEPS_A_ROUND} excludes it", f"{_STEPS_A_ROUND}=null"),
    Refusal(_SCHEDULE, _FOLLOWING, "it needs evaluations", f"eval_strategy=steps, or trainer.args.{_SCHEDULE}=linear"),
    *(Refusal(name, _NO_MAXIMUM, _FILLED, "max_length=1024") for name in ("packing", "eval_packing")),
    Refusal("max_length", _UNLIMITED, "the prompt gets what max_length leaves", "max_length=1024"),
    Refusal(_ANSWER, {_ANSWER: bool, "fills_rows": True}, "less than max_length, for a prompt", "max_length=1024"),
    Refusal("padding_free", {"packing": not_, "max_length": bool}, "it cuts no rows at max_length", "packing=true"),
    Refusal(_SMOOTHING, {_SMOOTHING: 0, "losses": {"exo_pair"}}, "exo_pair needs some", f"{_SMOOTHING}=0.001"),
    Refusal("loss_weights", {"is_weighed_otherwise": True}, "a weight for each loss of loss_type", "loss_weights=null"),
    Refusal("use_weighting", {"losses": _AOT.intersection}, "aot cannot weigh pairs", "loss_type=sigmoid"),
    Refusal(_SYNC, {_AHEAD: bool}, "precomputed ones never change", f"{_AHEAD}=false"),
    Refusal(_SYNC, {"beta": 0, "generates": True}, "with beta=0 there is no reference model", "beta=0.04"),
    Refusal(_SYNC, {"uses_lora": True}, "with model.lora the reference is the model itself", f"{_SYNC}=false"),
    Refusal(_EVERY, _OTHER_ORDER, "the KL term of loss_type=kto compares neighbours", f"{_EVERY}=sequential"),
    Refusal("log_completions_hub_repo", {"log_completions": not_}, "it uploads their table", "log_completions=true"),
    Refusal("use_teacher_server", {}, "rlhf starts no server for a teacher", "use_teacher_server=false"),
    Refusal(_KIND, {_KIND: "ema"}, "an averaged teacher is not in the checkpoints", f"{_KIND}=base"),
    Refusal("auto_find_batch_size", {"generates": True}, "it would split groups", "auto_find_batch_size=false"),
    Refusal("vllm_importance_sampling_correction", _UNBOUNDED, "a mode that truncates needs a bound", f"{_MAX}=3.0"),
    Refusal("tf32", {"use_cpu": True}, "TF32 is a format of GPUs, and this run uses the CPU", "tf32=null"),
    Refusal("dataloader_prefetch_factor", {_WORKERS: 0}, "workers prefetch", f"{_WORKERS}=2"),
    Refusal("dataloader_persistent_workers", {_WORKERS: 0}, "there is none to keep", f"{_WORKERS}=2"),
    Refusal("optim_args", {"optim_args": _is_malformed}, "it is a list such as a=1,b=2", "optim_args=null"),
    Refusal("beta", _NO_BETA, "times 0, every answer is as good: nothing is learnt", "beta=0.1"),
    Refusal("fp16_full_eval", {"bf16_full_eval": bool}, "bf16_full_eval is another precision", "bf16_full_eval=false"),
    Refusal(_UNUSED, {_UNUSED: True, "generates": True}, "rewards read the columns of the data", f"{_UNUSED}=false"),
    Refusal("optim", _NO_TARGETS, "it projects the matrices that are named", "optim_target_modules=all-linear"),
    Refusal("metric_for_best_model", _BEST, "save_strategy=best asks for it", "save_strategy=steps"),
    Refusal(_RATE, _LAST_RATE, "the schedule ends at one of them", f"{_RATE}.min_lr_rate=0.1"),
    Refusal(_RATE, _NO_DECAY, "the schedule needs num_decay_steps", f"{_RATE}.num_decay_steps=10"),
)
"""The combinations that TRL or transformers refuse only when they build a trainer; none needs the model."""

_CLIPPED = "dapo grpo bnpo dr_grpo luspo"
_OF_LOSSES = {
    **{"DPOConfig.label_smoothing": "robust exo_pair aot aot_unpaired", "CPOConfig.label_smoothing": "sigmoid simpo"},
    **{"TPOConfig.label_smoothing": "sigmoid tpo-l", "CPOConfig.simpo_gamma": "simpo"},
    **dict.fromkeys(("GRPOConfig.epsilon", "GRPOConfig.epsilon_high"), f"{_CLIPPED} cispo"),
    **{"GRPOConfig.delta": _CLIPPED},
}
_WITH_WARMUP = "constant_with_warmup linear cosine cosine_with_restarts polynomial inverse_sqrt cosine_with_min_lr"
_WITH_WARMUP += " cosine_warmup_with_min_lr warmup_stable_decay"
_WITH_OPTIM_ARGS = "sgd adagrad rmsprop rmsprop_bnb rmsprop_bnb_8bit rmsprop_bnb_32bit adamw_anyprecision stable_adamw"
_WITH_OPTIM_ARGS += (
    " grokadamw adamw_torch_4bit adamw_torch_8bit schedule_free_radam schedule_free_adamw schedule_free_sgd"
)
UNREAD: tuple[tuple[str, str, tuple[object, ...]], ...] = (
    *((f"{what}_steps", f"{what}_strategy", ("steps",)) for what in _EVENTS),
    ("num_train_epochs", "max_steps", (-1,)),
    ("warmup_steps", "lr_scheduler_type", tuple(_WITH_WARMUP.split())),
    ("gradient_checkpointing_kwargs", "gradient_checkpointing", (True,)),
    *((f"ref_model_{what}", "sync_ref_model", (True,)) for what in ("mixup_alpha", "sync_steps")),
    ("liger_kernel_config", "use_liger_kernel", (True,)),
    ("optim_target_modules", "optim", _LOW_RANK),
    ("optim_args", "optim", (*_WITH_OPTIM_ARGS.split(), *_LOW_RANK)),
    ("DPOConfig.f_alpha_divergence_coef", "f_divergence_type", ("alpha_divergence",)),
    *((f"hub_{name}", "push_to_hub", (True,)) for name in _OF_UPLOADS),
    *((name, "loss_type", tuple(losses.split())) for name, losses in _OF_LOSSES.items()),
)
"""(Argument or CONFIG.argument, the argument that decides whether it is read, its values with which it is)."""

STOP_STRINGS = {"hf": "stop_strings", "vllm": "stop", "vllm_server": "stop"}
"""Way to generate -> its key in `generation_kwargs` for texts that end a completion; continuous batching has none."""

MAX_RELATIVE_KL_ERROR = 0.2  # bound on |KL / target - 1| in adaptive KL (Ziegler et al., arXiv 1909.08593, 2.2)

_LOG_LEVELS = ("detail", "debug", "info", "warning", "error", "critical", "passive")

CHOICES: dict[str, tuple[str, ...]] = {
    "importance_sampling_level": ("token", "sequence"),
    "DPOConfig.loss_type": (
        *("sigmoid", "hinge", "ipo", "exo_pair", "nca_pair", "robust", "bco_pair", "sppo_hard", "aot"),
        *("aot_unpaired", "apo_zero", "apo_down", "discopop", "sft", "sigmoid_norm"),
    ),
    "f_divergence_type": ("reverse_kl", "forward_kl", "js_divergence", "alpha_divergence"),
    "truncation_mode": ("keep_start", "keep_end"),
    "packing_strategy": ("bfd", "bfd_split", "wrapped", "bfd-requeue"),
    "KTOConfig.train_sampling_strategy": ("random", "sequential", "group_by_length"),
    "dataloader_multiprocessing_context": ("fork", "spawn", "forkserver"),
    **dict.fromkeys(("warmup_type", "decay_type"), ("linear", "cosine", "1-sqrt")),
    "determinism_check": ("default", "none"),
    "GreedyLR.mode": ("min", "max"),
    "GreedyLR.threshold_mode": ("rel", "abs"),
    "log_level": _LOG_LEVELS,
    "log_level_replica": _LOG_LEVELS,
    "include_num_input_tokens_seen": ("all", "non_padding", "no"),
}
"""Argument, or CONFIG.argument if configs differ -> its valid values."""

TEXT_ARGUMENTS = ("prompts", "completions", "completion_ids")
"""Arguments of a reward that hold texts, messages or token ids by row. A function needs one to count as a reward."""
TRAINERS_OWN = frozenset(("environments", "trainer_state", "log_extra", "log_metric"))
"""Arguments of a reward that are not data, and so stay in the training process. Only `environments` are by row."""
REWARD_ARGUMENTS = frozenset(TEXT_ARGUMENTS) | TRAINERS_OWN  # every other required argument is a column of the data
TURN_TEXTS = "turn_texts"  # column of a rollout function: the texts of a row's turns, as its completion is one text
TAKEN_BY_REWARDS = REWARD_ARGUMENTS | {"prompt", "completion", "prompt_ids", "logprobs", "env_mask", TURN_TEXTS}
"""Names that a column of a rollout cannot have."""
_THEIR_COMPLETIONS = "response solution_str solution_strs predict_str predict model_output output queries predicts"
NEVER_COLUMNS = {"prompt": "prompts"} | dict.fromkeys(["completion", *_THEIR_COMPLETIONS.split()], "completions")
"""What no reward is given under this name: two columns, and arguments of other tools -> the argument that holds it."""
BESIDE_ARGS = dict.fromkeys(("sample", "samples"), "completions")
"""The same where another argument is `args`, as in slime: alone, these may be arguments of a factory, or columns."""

TABLE_COLUMNS = frozenset({"step", "prompt", "completion", "advantage", "total"})
"""Columns that every table of completions has. No reward can have such a name: its scores are a column too."""
ROUND = "rollout.round"  # the training round in which the row was generated, from 0; empty for an evaluation row
STEP = "rollout.step"  # the steps that the generating policy had taken, at which weight schedules are evaluated
TRUNCATED = "rollout.truncated"  # whether it was truncated, as the truncation policy defines it
ENDING = "rollout.ending"  # how it ended, a word of `rlhf_cli.truncation.Ending`; not in tables of older versions
TOKENS = "rollout.tokens"  # its length in tokens, including the end-of-sequence token

KEPT = "sampling.kept"  # whether the row is trained on; only a run with `sampling.keep_groups` has this column

ALL = (ROUND, STEP, TRUNCATED, TOKENS)
"""With these and the raw scores, a round's rewards can be recomputed exactly (docs/how-to/scoring.md)."""
