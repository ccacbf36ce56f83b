"""Lists the models that a run holds on a device: policy, reference, critic, reward models."""

from __future__ import annotations

from dataclasses import dataclass

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.trl_args import setting, trainer
from rlhf_cli.memory.activations import Adapter
from rlhf_cli.memory.architecture import Architecture, UnknownArchitecture
from rlhf_cli.memory.model_shapes import DTYPE_BYTES, ModelShape, model_shape, tiny_shape
from rlhf_cli.memory.parameters import Parameters, adapted, count_adapter, count_parameters
from rlhf_cli.memory.precision import INT8_BYTES, NF4_BYTES, Precision

_ONE_SCORE = 1


@dataclass(frozen=True)
class Loaded:
    """A model as a run loads it. With an `adapter`, only `adapter_parameters` and `head_parameters` are trained."""

    architecture: Architecture
    parameters: Parameters
    precision: Precision
    adapter: Adapter | None = None
    adapter_parameters: int = 0
    head_parameters: int = 0
    """Parameters of a new head, which is trained together with an adapter."""

    @property
    def trained(self) -> int:
        """Return how many parameters are trained, if this model is trained."""
        return self.parameters.total if self.adapter is None else self.adapter_parameters + self.head_parameters


def policy_of(experiment: Experiment, *, bf16: bool) -> Loaded:
    """Return the model that is trained. `bf16`: its matrices are computed in 2 bytes.

    Raise UnknownArchitecture if its shape is unknown.
    """
    model = experiment.model
    shape = _policy_shape(experiment)
    arch = shape.architecture
    element = shape.stored_bytes if model.dtype == "auto" else DTYPE_BYTES[model.dtype]
    quantised = {None: None, "4bit": NF4_BYTES, "8bit": INT8_BYTES}[model.quantize]
    precision = Precision(element, autocast=bf16, quantised_bytes=quantised)
    scores = "reward_model" in experiment.trainer.row.sections
    parameters = count_parameters(arch, head=_ONE_SCORE if scores else None)
    if model.lora is None:
        return Loaded(arch, parameters, precision)
    targets = model.lora.target_modules
    return Loaded(
        arch,
        parameters,
        precision,
        Adapter(model.lora.r, tuple(name.rpartition(".")[2] for name in adapted(arch, targets))),
        count_adapter(arch, model.lora.r, targets),
        parameters.head if scores else 0,
    )


def critic_of(experiment: Experiment, policy: Loaded) -> Loaded | None:
    """Return the critic with its head of one value if it is a separate model, else None.

    Without a `model.dtype` its weights are in float32 (assemble/ppo_parts.py).
    """
    critic = experiment.critic
    if critic is None or critic.share != "none":
        return None
    arch = policy.architecture if critic.init == "policy" else model_shape(critic.init).architecture
    element = DTYPE_BYTES.get(experiment.model.dtype, 4.0)
    precision = Precision(element, autocast=policy.precision.autocast)
    return Loaded(arch, count_parameters(arch, head=_ONE_SCORE), precision)


def reward_models_of(experiment: Experiment, *, on_gpu: bool) -> tuple[dict[str, Loaded], list[str]]:
    """Return the reward models on the training device, keyed by reward, and the names of those of unknown shape."""
    known: dict[str, Loaded] = {}
    unknown: list[str] = []
    for name, reward in experiment.rewards.items():
        if reward.model is None or (on_gpu and reward.device == "cpu"):
            continue
        try:
            shape = model_shape(reward.model)
        except UnknownArchitecture:
            unknown.append(name)
            continue
        element = DTYPE_BYTES.get(reward.dtype, shape.stored_bytes)
        parameters = count_parameters(shape.architecture, head=_ONE_SCORE)
        known[name] = Loaded(shape.architecture, parameters, Precision(element))
    return known, unknown


def has_reference(experiment: Experiment) -> bool:
    """Return whether a separate frozen copy of the policy is held. With an adapter, the policy without it is the
    reference.
    """
    fields, args = trainer(experiment.trainer.trl), experiment.trainer.args
    if experiment.model.lora is not None:
        return False
    if experiment.trainer.trl in ("DPOTrainer", "KTOTrainer"):
        return setting(fields, args, "precompute_ref_log_probs") is not True
    if not experiment.trainer.row.generates:
        return False
    kl = experiment.kl
    if kl is not None:
        return kl.coef != 0 and kl.form.needs_reference
    return setting(fields, args, "beta") not in (0, 0.0, None)


def _policy_shape(experiment: Experiment) -> ModelShape:
    model, build = experiment.model, experiment.model.build
    if build is not None:
        return tiny_shape(build.hidden_size, build.num_layers, build.num_heads, build.context_tokens)
    return model_shape(str(model.path), revision=model.revision)
