"""List combinations of arguments that TRL or transformers refuse only when they build a trainer.

None needs the model. Tests hold the rows against TRL.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import not_
from typing import NamedTuple


class Refusal(NamedTuple):
    """A combination that is refused at `key`: `why`, and what to type `instead`.

    `values`: argument -> its value, or a function that says whether a value is meant; `key` itself is on. `losses` is
    the set of losses; `use_cpu`, `uses_lora` and `generates` are facts that other sections decide.
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


_MIN, _MAX = (f"vllm_importance_sampling_clip_{end}" for end in ("min", "max"))
_SYNC, _EVERY = "sync_ref_model", "train_sampling_strategy"
_NO_MAXIMUM, _FILLED = {"max_length": None}, "it fills rows up to max_length, which is null"
_UNBOUNDED = {
    "vllm_importance_sampling_mode": ("token_truncate", "sequence_truncate").__contains__,
    _MIN: None,
    _MAX: None,
}
_OTHER_ORDER = {_EVERY: lambda strategy: strategy != "sequential", "losses": {"kto"}}
_LAST_RATE = {"lr_scheduler_type": lambda name: str(name).endswith("with_min_lr"), "lr_scheduler_kwargs": _lacks_one}
_BEST = {"save_strategy": "best", "metric_for_best_model": None}
REFUSALS = (
    Refusal("packing", _NO_MAXIMUM, _FILLED, "max_length=1024"),
    Refusal("eval_packing", _NO_MAXIMUM, _FILLED, "max_length=1024"),
    Refusal("padding_free", {"packing": not_, "max_length": bool}, "it cuts no rows at max_length", "packing=true"),
    Refusal(
        "label_smoothing",
        {"label_smoothing": 0, "losses": {"exo_pair"}},
        "exo_pair needs some",
        "label_smoothing=0.001",
    ),
    Refusal(
        "use_weighting", {"losses": {"aot", "aot_unpaired"}.intersection}, "aot cannot weigh pairs", "loss_type=sigmoid"
    ),
    Refusal(
        _SYNC, {"precompute_ref_log_probs": bool}, "precomputed ones never change", "precompute_ref_log_probs=false"
    ),
    Refusal(_SYNC, {"beta": 0, "generates": True}, "with beta=0 there is no reference model", "beta=0.04"),
    Refusal(_SYNC, {"uses_lora": True}, "with model.lora the reference is the model itself", f"{_SYNC}=false"),
    Refusal(_EVERY, _OTHER_ORDER, "the KL term of loss_type=kto compares neighbours", f"{_EVERY}=sequential"),
    Refusal("log_completions_hub_repo", {"log_completions": not_}, "it uploads their table", "log_completions=true"),
    Refusal("auto_find_batch_size", {"generates": True}, "it would split groups", "auto_find_batch_size=false"),
    Refusal("vllm_importance_sampling_correction", _UNBOUNDED, "a mode that truncates needs a bound", f"{_MAX}=3.0"),
    Refusal("tf32", {"use_cpu": True}, "TF32 is a format of GPUs, and this run uses the CPU", "tf32=null"),
    Refusal(
        "dataloader_prefetch_factor", {"dataloader_num_workers": 0}, "workers prefetch", "dataloader_num_workers=2"
    ),
    Refusal("fp16_full_eval", {"bf16_full_eval": bool}, "bf16_full_eval is another precision", "bf16_full_eval=false"),
    Refusal("metric_for_best_model", _BEST, "save_strategy=best asks for it", "save_strategy=steps"),
    Refusal(
        "lr_scheduler_kwargs", _LAST_RATE, "the schedule ends at one of them", "lr_scheduler_kwargs.min_lr_rate=0.1"
    ),
)
