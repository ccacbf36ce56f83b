"""Explain an out-of-memory error: the phase, torch's own numbers, and what to reduce. Imported after an error only."""

from __future__ import annotations

from rlhf_cli.errors import RlhfError, message_of, with_causes
from rlhf_cli.runs import heartbeat as beats
from rlhf_cli.runs.heartbeat import Heartbeat, in_words

_OF_GPU = ("CUDA out of memory", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "HIP out of memory")
_OF_CPU = ("can't allocate memory", "not enough memory: you tried to allocate", "Cannot allocate memory")
_LEARNING = (
    "a smaller trainer.args.per_device_train_batch_size with a larger gradient_accumulation_steps, "
    "trainer.args.gradient_checkpointing=true, model.lora.r=16, or launch=fsdp2 on several GPUs"
)
_ADVICE = {
    beats.LOADING: "model.lora.r=16 model.quantize=4bit, model.dtype=bfloat16, or launch=fsdp2 on several GPUs",
    beats.GENERATION: "fewer completions at once (a smaller trainer.args.steps_per_generation or "
    "per_device_train_batch_size), or a smaller trainer.args.max_completion_length",
    beats.REWARDS: "a smaller rewards.NAME.batch_size, rewards.NAME.device=cpu for a reward model, or "
    "rewards.NAME.isolate=true for a function",
    beats.OPTIMIZER: "model.lora.r=16, trainer.args.optim=adafactor, or launch=zero2 on several GPUs",
    beats.EVALUATION: "a smaller trainer.args.per_device_eval_batch_size",
    beats.SAVING: "trainer.args.save_only_model=true (nothing resumes exactly), or model.lora.r=16",
}
"""Phase -> what needs less memory there; phases that are not listed learn."""


def out_of_memory(error: BaseException, heartbeat: Heartbeat) -> RlhfError | None:
    """Return the error with advice if `error` or one of its causes says that memory is full, else None."""
    chain = list(with_causes(error))
    cause = next((one for one in chain if _kind(one) is not None), None)
    if cause is None:
        return None
    reward = next((name for one in chain if (name := getattr(one, "reward", None))), None)
    on_gpu = _kind(cause) == "gpu"
    phases = [phase for phase in heartbeat.phases if phase not in beats.PARTS] or [beats.LOADING]
    doing = in_words(heartbeat.phases) + (f", reward {reward!r}" if reward is not None else "")
    return RlhfError(
        ("CUDA" if on_gpu else "the machine is") + f" out of memory: {doing}",
        where=f"rank {heartbeat.rank}, {doing}",
        got=str(cause).partition("  See documentation")[0].partition("\n")[0] or type(cause).__name__,
        expected="that it fits",
        advice=_ADVICE.get(phases[-1], _LEARNING).replace("NAME", reward or "NAME"),
    )


def _kind(error: BaseException) -> str | None:
    """Return which memory an error says is full, "gpu" or "cpu"; None for other errors."""
    if isinstance(error, MemoryError):
        return "cpu"
    text = message_of(error)
    if type(error).__name__ == "OutOfMemoryError" or any(words in text for words in _OF_GPU):
        return "gpu"
    is_of_torch = isinstance(error, RuntimeError | OSError)
    return "cpu" if is_of_torch and any(words in text for words in _OF_CPU) else None
