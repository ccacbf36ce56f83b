"""Check the section `model.lora`: peft's own fields, and those that change the model below the adapter."""

from __future__ import annotations

from collections.abc import Iterator

from rlhf_cli.config.origins import Origins
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.schema.model_and_data import Lora
from rlhf_cli.config.trl_args import expected_instead, lora_fields
from rlhf_cli.errors import ConfigError, UserError
from rlhf_cli.text.suggest import nearest

_KEY = "model.lora"
_INIT = "init_lora_weights"
_NO_CHANGE = (True, "gaussian", "orthogonal", "mica")
"""The values of init_lora_weights with which the adapter adds 0 at first, and the weights below it stay."""
_READS_DATA = ("eva", "corda", "lora_ga")
_UNTRIED = {
    **dict.fromkeys(("megatron_config", "megatron_core"), "rlhf does not shard by Megatron"),
    **dict.fromkeys(("eva_config", "corda_config", "lora_ga_config"), "it reads data before training"),
    "layer_replication": "it adds layers that the memory plan, the critic and exports do not know",
    "alora_invocation_tokens": "its adapter begins in the middle of a row, which packed rows do not keep apart",
    **dict.fromkeys(
        ("arrow_config", "use_bdlora", "kasa_config", "monteclora_config", "velora_config", "runtime_config"),
        "it was never tried with the passes, the critic and the exports of rlhf",
    ),
}
"""Fields that are refused -> why."""


def own_fields() -> dict[str, object]:
    """Return the fields of peft's that `model.lora` takes beside those of the schema, with their defaults."""
    known = lora_fields()
    return {name: known[name].default for name in known if name not in {*Lora.model_fields, *_UNTRIED}}


def adapter_problems(experiment: Experiment, origins: Origins) -> Iterator[UserError]:
    """Yield an error for each field that peft does not have, or that does not work here."""
    lora = experiment.model.lora
    assert lora is not None
    fields, known = lora_fields(), {*Lora.model_fields, *own_fields()}
    for name, value in (lora.model_extra or {}).items():
        key = f"{_KEY}.{name}"
        where = origins.where(key)
        if name in _UNTRIED:
            yield ConfigError(f"rlhf does not take {key}", where=where, expected=_UNTRIED[name], hint=f"'~{key}'")
        elif name not in known:
            close = nearest(name, known)
            yield ConfigError(
                f"unknown key {key!r}",
                where=where,
                expected=f"one of {', '.join(sorted(known))}",
                hint=f"{_KEY}.{close}" if close else "rlhf list keys lora",
            )
        elif not str(value).startswith("pissa_niter_") and (expected := expected_instead(fields[name], value)):
            yield ConfigError(f"wrong value for {key}", where=where, got=repr(value), expected=expected, hint=f"~{key}")
    yield from _initial_problems(experiment, (lora.model_extra or {}).get(_INIT, True), origins)


def _initial_problems(experiment: Experiment, initial: object, origins: Origins) -> Iterator[UserError]:
    """Yield an error for an initialisation that reads data, or whose model without adapter is not the first policy."""
    key, shares = f"{_KEY}.{_INIT}", experiment.critic is not None and experiment.critic.share == "lora"
    problem = ""
    if initial in _READS_DATA:
        problem = f"{initial} reads data before training, which no key names"
    elif initial not in _NO_CHANGE and (experiment.has_reference or shares):
        user = "the KL compares the policy with" if experiment.has_reference else "critic.share=lora starts from"
        problem = f"{user} the model without its adapter, which with {initial} is not the initial policy"
    if problem:
        why_not = ", or kl.where=none" if experiment.kl is not None and experiment.has_reference else ""
        yield ConfigError(
            f"{key}={initial} does not work here",
            where=origins.where(key),
            got=problem,
            expected=f"one of true, {', '.join(str(value) for value in _NO_CHANGE[1:])}",
            hint=f"~{key}{why_not}",
        )
