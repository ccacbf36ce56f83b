"""Check the models that a run starts from: folders, config.json, weights, policy, critic, and how rows go through them.

The run decides the last from the loaded model (trainers/pass_mixin.py). A config.json is checked against the source
files of transformers, whose import takes seconds.
"""

from __future__ import annotations

import re
import shlex
from functools import cache
from itertools import accumulate
from pathlib import Path

from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.config.trl_args import package_dir
from rlhf_cli.data.worlds import demonstrations
from rlhf_cli.errors import ConfigError, ModelError
from rlhf_cli.models import tokenizer_files as files
from rlhf_cli.models import weight_shapes as weights
from rlhf_cli.models.foreign_files import untrusted_code
from rlhf_cli.models.model_folders import describe_critic, describe_model, describe_reward_model, is_language_model
from rlhf_cli.plan.checks.facts import Check, Findings, Subject, config_in
from rlhf_cli.plan.devices import uses_gpu
from rlhf_cli.runs.provenance import version_of
from rlhf_cli.tables.passes import ATTENTIONS, READS_IMAGES, Passes, refused_packing, why_config_not_packed
from rlhf_cli.text.json_values import JsonTree
from rlhf_cli.text.suggest import nearest

_WEIGHT_FILES = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf", "*.h5", "*.msgpack")
_AS_SFT = ("GKDTrainer", "GOLDTrainer")  # trainers that extend SFTTrainer, and refuse what it refuses
_CONFIG_CLASS = re.compile(r'"([\w.-]+)"[,:]\s*"(\w+Config)"')


def policy_problems(subject: Subject) -> Check[str]:
    """Check the model that is trained, and return its description in words. Raise ModelError if it does not exist, is
    not of the kind that the trainer trains, or cannot be quantised here, and DataError for a warm start on a world
    without demonstrations.
    """
    yield from ()  # a check is a generator
    model, trainer = subject.experiment.model, subject.experiment.trainer
    more = (f" + LoRA r={model.lora.r}" if model.lora else "") + (f", {model.quantize}" if model.quantize else "")
    if model.build is not None:
        for world in model.build.warm_start.worlds if model.build.warm_start else ():
            demonstrations(world, 1, seed=0, name=subject.where("model.build.warm_start.worlds"))
        return f"tiny: {model.build.num_layers} layers of {model.build.hidden_size}, byte-level, embedded" + more
    assert model.path is not None
    where = subject.where("model.path")
    described = describe_model(model.path, where=where, needs_tokenizer=model.tokenizer is None)
    _refuse_revision(subject, "model", model.path, model.revision)
    if _is_classifier(Path(model.path).expanduser()):
        if trainer.row.trains != "reward model":
            what = f"trainer={trainer.name} trains a language model, but this is a classifier"
            advice = "use the model that it was trained from; put a reward model into rewards.NAME.model"
            raise ModelError(what, where=where, got=described, expected="a causal language model", advice=advice)
        describe_reward_model(model.path, where=where)  # raises if it has several labels
    return described + more


def teacher_problems(subject: Subject) -> Findings:
    """Yield an error if the teacher's tokens are not those of the policy, unless the trainer aligns the two kinds.
    Raise ModelError if it does not exist or is a classifier.
    """
    trainer, teacher, tokenizer = subject.experiment.trainer, subject.experiment.teacher, subject.tokenizer
    if teacher is None:
        return
    where = subject.where("teacher.path")
    described = describe_model(teacher.path, where=where, needs_tokenizer=False)
    _refuse_revision(subject, "teacher", teacher.path, teacher.revision)
    folder = subject.folder_of(teacher.path)
    if folder is None or tokenizer is None:
        return
    if _is_classifier(folder):
        what, expected = "a teacher says how likely each next token is, and this is a classifier", "a language model"
        raise ModelError(what, where=where, got=described, expected=expected)
    theirs, ours = files.read_tokenizer(folder, where=where).tokens, tokenizer.tokens
    other = sorted(token for token in {*theirs, *ours} if theirs.get(token) != ours.get(token))
    build, config = subject.experiment.model.build, subject.config_below(subject.experiment.model.path)
    size = weights.TINY_VOCABULARY if build else files.vocab_size_of(config)
    sizes = [files.vocab_size_of(subject.config_below(teacher.path)), size]
    if theirs and ours and other and not trainer.setting("use_uld_loss"):
        ids = [known.get(other[0], "no token") for known in (theirs, ours)]
        got = f"{other[0]!r} is {ids[0]} for the teacher, {ids[1]} for the policy"
        hint = "trainer=gold " * (trainer.trl != "GOLDTrainer") + "trainer.args.use_uld_loss=true"
        expected, what = "a teacher of the policy's family", "the teacher's tokens differ from the policy's"
        yield ModelError(what, where=where, got=got, expected=expected, hint=hint)
    elif trainer.row.same_vocabulary and None not in sizes and sizes[0] != sizes[1]:
        what, expected = "the teacher's vocabulary has another size", "the same, or a trainer that cuts or pads it"
        got = f"vocab_size {sizes[0]} for the teacher, {sizes[1]} for the policy"
        yield ModelError(what, where=where, got=got, expected=expected, hint="trainer=gold")


def _refuse_revision(subject: Subject, section: str, path: str, revision: str | None) -> None:
    """Raise ModelError for a revision of a local folder."""
    if revision is not None and Path(path).expanduser().is_dir():
        where, got = subject.where(f"{section}.revision"), f"{revision} of {path}"
        raise ModelError("a model folder has no revisions", where=where, got=got, hint=f"{section}.revision=null")


def _is_classifier(folder: Path) -> bool:
    """Return whether the config of a model folder, or of the adapter in it, declares a classifier."""
    for name, field in (("config.json", "architectures"), ("adapter_config.json", "task_type")):
        if (folder / name).is_file():
            stated = files.read_json(folder / name).get(field) or ""
            kind = str(stated[0] if isinstance(stated, list) else stated)
            return kind.endswith(("ForSequenceClassification", "SEQ_CLS"))
    return False


def planned_passes(subject: Subject) -> Passes | None:
    """Return how rows go through the models of a trainer that generates; None for other trainers, and if only the
    loaded model can tell: its config.json is not on this machine, or is of a model family that is not in the table.
    """
    experiment, trainer = subject.experiment, subject.experiment.trainer
    if not trainer.row.generates:
        return None
    if trainer.passes in ("trimmed", "plain"):
        return Passes(trainer.passes, "as asked")
    config: JsonTree = {"model_type": "llama"}  # what `model.build` makes
    if experiment.model.build is None:
        config = subject.config_below(str(experiment.model.path))
    if "vision_config" in config:
        return Passes("plain", READS_IMAGES)
    try:
        why = _why_not(experiment, config)
        if why is None and experiment.critic is not None and experiment.critic.init != "policy":
            of_critic = _why_not(experiment, subject.config_below(experiment.critic.init))
            why = None if of_critic is None else f"the critic: {of_critic}"
    except KeyError:
        return None
    if why is None and trainer.setting("torch_compile") is True:
        why = "it is compiled for rows of one shape"
    dtype = experiment.model.dtype if experiment.model.dtype != "auto" else files.dtype_of(config) or "float32"
    is_float32 = experiment.launch.precision == "float32" and "16" not in dtype
    # For float32 a GPU has no kernel that takes all packed rows at once.
    if why is None and trainer.passes == "auto" and is_float32 and uses_gpu(experiment.launch):
        why = "packed, each row would attend by itself: it is computed in float32"
    return Passes("packed") if why is None else Passes("trimmed", why)


def _why_not(experiment: Experiment, config: JsonTree) -> str | None:
    """Return why rows are not packed in the model of a config.json. Raise KeyError if its family is unknown."""
    if files.language_part(config) is not config:
        return "it reads more than text"
    trainer, lora = experiment.trainer, experiment.model.lora
    # TRL's `disable_dropout` leaves dropout in the attention; ours under PPO does not (trainers/assemble/ppo_setup.py).
    in_attention = config.get("attention_dropout") and not (trainer.disables_dropout and trainer.has_critic)
    in_adapter = lora is not None and lora.lora_dropout > 0 and not trainer.disables_dropout
    why = why_config_not_packed(config, ATTENTIONS[0])  # no key of an experiment changes the default
    return why or ("it drops at random in training, each row for itself" if in_attention or in_adapter else None)


def critic_problems(subject: Subject) -> Findings:
    """Refuse packed rows, as the run would, if a model's config.json shows that they cannot be packed. Raise ModelError
    if the critic's initial model is not a critic, or does not fit this policy.
    """
    experiment, critic, model = subject.experiment, subject.experiment.critic, subject.experiment.model
    passes = planned_passes(subject) if experiment.trainer.passes == "packed" else None
    if passes is not None and passes.mode != "packed":
        yield refused_packing(passes, where=subject.where("trainer.passes"))
    if critic is not None and critic.init != "policy":
        policy = str(model.path or files.EMBEDDED_TOKENIZER)
        describe_critic(critic.init, policy, model.tokenizer, where=subject.where("critic.init"))


def weight_problems(subject: Subject) -> Findings:
    """Yield an error for every model folder without weights, or whose weights are truncated or Git LFS pointers."""
    for key, folder in subject.loaded_models():
        if not any(next(folder.glob(pattern), None) for pattern in _WEIGHT_FILES):
            what = "the model folder has no weights"
            got = f"{folder}: " + ", ".join(sorted(file.name for file in folder.iterdir())[:6])
            expected = "model.safetensors, or its parts with their index"
            advice, hint = f"set {key} to a folder written by save_pretrained or `hf download`", None
            if (folder / "zero_to_fp32.py").is_file():  # DeepSpeed's shards, and FSDP's
                hint = shlex.join(["python", f"{folder}/zero_to_fp32.py", str(folder), str(folder)])
            elif shards := next(folder.glob("*/*.distcp"), None):
                hint = shlex.join(["accelerate", "merge-weights", str(shards.parent), str(folder)])
            yield ModelError(what, where=subject.where(key), got=got, expected=expected, advice=advice, hint=hint)
        elif (trouble := weights.damaged_weights(folder)) is not None:
            expected, got = "every file of the index, as long as its header says", f"{folder}: {trouble}"
            what, advice = "the weights are incomplete", "copy or download the folder again"
            yield ModelError(what, where=subject.where(key), got=got, expected=expected, advice=advice)


def adapter_problems(subject: Subject) -> Findings:
    """Yield an error for each key of LoRA's with the name of a layer, parameter or module that the model lacks, and for
    an adapter on the head where TRL's loss reads the head's weight alone, and so refuses it.
    """
    model, row = subject.experiment.model, subject.experiment.trainer.row
    if (lora := model.lora) is None:
        return
    folder, shapes = subject.folder_of(model.path), list[weights.WeightShape]()
    if model.build is not None:
        shapes = weights.tiny_shapes(model.build.hidden_size, model.build.num_layers)
    elif folder is not None and (folder / "config.json").is_file():
        shapes = weights.stored_shapes(folder) or []
    modules = [shape.name.removesuffix(".weight") for shape in shapes if len(shape.shape) >= 2]
    if not modules or any("expert" in name for name in modules):
        return  # experts have other names in memory than in their files
    # The paths of all modules, and the names of the heads that a file need not have.
    paths = {path for shape in shapes for path in accumulate(shape.name.split(".")[:-1], "{}.{}".format)}
    paths |= {"lm_head", "score", "classifier"}

    def is_there(kind: str, one: str, pattern: str | list[str]) -> bool:
        if kind == "layer" or isinstance(pattern, str):
            return any(weights.is_target(layer, pattern) for layer in modules)
        if kind == "parameter":
            return any(weights.is_target(shape.name, pattern) for shape in shapes)
        # A file may leave out the model's own name: `wte` is `transformer.wte`.
        return any(path.endswith(one) or one.endswith(f".{path}") for path in paths)

    layers = ("layer", {name.rpartition(".")[2] for name in modules})
    kinds = {
        **dict.fromkeys(("target_modules", "exclude_modules", "rank_pattern", "alpha_pattern"), layers),
        "target_parameters": ("parameter", {".".join(shape.name.split(".")[-2:]) for shape in shapes}),
        "modules_to_save": ("module", {path.rpartition(".")[2] for path in paths}),
    }
    for name, (kind, known) in kinds.items():
        given, key, chooses = lora.model_dump().get(name), f"model.lora.{name}", name == "target_modules"
        if given == "all-linear" or not isinstance(given, str | list | dict):
            continue
        listed = [given] if isinstance(given, str) else [*map(str, given)]
        names = sorted(one for one in known if not one.isdigit())
        instead = f"{key}=all-linear" if chooses else f"'~{key}'"
        patterns = {one: rf"(.*\.)?({one})" if name.endswith("_pattern") else [one] for one in listed}
        patterns = {given: given} if isinstance(given, str) else patterns  # a text is a pattern for layers' names
        if without := [one for one in listed if not is_there(kind, one, patterns[one])]:
            near = [nearest(one, names) if one in without else one for one in listed]
            meant = [] if isinstance(given, dict) else list(dict.fromkeys(one for one in near if one is not None))
            what, hint = f"the model has no {kind} named {' or '.join(without)}", f"{key}='[{','.join(meant)}]'"
            hint, expected = hint if meant else instead, "all-linear, or " * chooses + f"some of {', '.join(names)}"
            yield ConfigError(what, where=subject.where(key), got=", ".join(listed), expected=expected, hint=hint)
        heads = [name for name in modules if name.endswith("lm_head") and weights.is_target(name, lora.target_modules)]
        if chooses and heads and (row.bounds_logits or row.name in _AS_SFT):
            others = [one for one in listed if one.rpartition(".")[2] != "lm_head" and one is not given]
            what, expected = "this trainer would not train an adapter on lm_head", "layers below the head"
            hint = f"{key}='[{','.join(others)}]'" if others else instead
            yield ConfigError(what, where=subject.where(key), got=", ".join(listed), expected=expected, hint=hint)


def config_problems(subject: Subject) -> Findings:
    """Yield an error for every config.json that transformers refuses, and for a class that TRL would not find."""
    trains_classifier = subject.experiment.trainer.row.trains == "reward model"
    for key, folder in subject.loaded_models():
        # TRL takes the class of these by its name, transformers that of all others by the model type.
        is_named = key == "teacher.path" or (key == "model.path" and not trains_classifier)
        config, where, file = config_in(folder), subject.where(key), folder / "config.json"
        trusts = subject.experiment.model.trust_remote_code and not key.startswith("rewards.")
        if config.get("auto_map") and (kind := config.get("model_type")) not in _config_classes() and not trusts:
            yield untrusted_code(key, where=where, got=f"{file}: model_type: {kind}, with auto_map")
        elif (mistake := _mistake(config, needs_class=is_named)) is not None:
            what, got, expected = mistake
            advice = f"mend that file, or set {key} to another model"
            yield ModelError(what, where=where, got=f"{file}: {got}", expected=expected, advice=advice)


def _mistake(config: JsonTree, *, needs_class: bool) -> tuple[str, str, str] | None:
    """Return what is wrong with a config.json, what it holds and what is expected. None for a sound or an empty one
    (the folder may hold an adapter), and for a model with its own code (`auto_map`).
    """
    if config.get("auto_map") or not config:
        return None
    installed, kinds = f"transformers {version_of('transformers')}", _config_classes()
    models = package_dir("transformers") / "models"
    kind, classes = str(config.get("model_type")), config.get("architectures")
    if kind not in kinds:
        expected = f"a model type of {installed}, such as {nearest(kind, kinds) or 'llama'}"
        return "transformers does not know this model type", f"model_type: {kind}", expected
    if not needs_class:
        return None
    name = classes[0] if isinstance(classes, list) and classes else None
    is_class = isinstance(name, str) and (  # the tables of the automatic classes name nearly all
        f'"{name}"' in (models / "auto" / "modeling_auto.py").read_text("utf-8")
        or any(f"class {name}(" in file.read_text("utf-8") for file in models.glob("*/modeling_*.py"))
    )
    if not is_class:
        what = "transformers does not know this architecture"
        return what, f"architectures: {classes}", f"the name of a class in {installed}"
    defaults = [file.read_text("utf-8") for file in (models / kind.replace("-", "_")).glob("configuration_*.py")]
    encodes = any(re.search(r"is_encoder_decoder(: bool)? = True", text) for text in defaults)
    is_classifier = str(name).endswith(files.CLASSIFIERS)  # the check of the policy refuses it
    if not is_classifier and (config.get("is_encoder_decoder", encodes) or not is_language_model(config)):
        what, expected = "this is no causal language model", "a model that continues a text, such as ...ForCausalLM"
        return what, f"architectures: {classes}", expected
    return None


@cache
def _config_classes() -> dict[str, str]:
    """Return model type -> the name of its configuration class."""
    folder = package_dir("transformers") / "models" / "auto"
    files = [folder / name for name in ("auto_mappings.py", "configuration_auto.py")]
    return dict(_CONFIG_CLASS.findall("".join(file.read_text("utf-8") for file in files if file.is_file())))
