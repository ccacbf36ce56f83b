"""Checks that the packages which TRL's arguments require are installed, so that a run does not fail at their import."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator

from rlhf_cli.config.compose import Composed
from rlhf_cli.config.schema.experiment import Experiment
from rlhf_cli.errors import ConfigError, UserError
from rlhf_cli.plan.checks.known import Known

_OPTIMIZERS = (
    (re.compile(r"8bit|paged|ademamix|bnb"), "bitsandbytes"),
    (re.compile(r"galore"), "galore_torch"),
    (re.compile(r"apollo"), "apollo_torch"),
    (re.compile(r"lomo"), "lomo_optim"),
    (re.compile(r"grokadamw"), "grokadamw"),
    (re.compile(r"schedule_free"), "schedulefree"),
    (re.compile(r"_torch_(4|8)bit$"), "torchao"),
    (re.compile(r"apex"), "apex"),
)
"""The package that transformers' Trainer imports for an optimizer whose name matches; the last match counts."""
_REWARDS = (("trl.rewards.accuracy_rewards:", "math_verify", "pip install 'rlhf-cli[math]'"),)


def package_problems(experiment: Experiment, composed: Composed, known: Known) -> Iterator[UserError]:
    """Yield an error for every required package that is not installed."""
    args, origins = experiment.trainer.args, composed.origins
    optimizer = str(args.get("optim", ""))
    packages = [package for pattern, package in _OPTIMIZERS if pattern.search(optimizer)]
    if packages and _is_absent(packages[-1]):
        yield _absent(packages[-1], origins.where("trainer.args.optim"), optimizer, "trainer.args.optim=adamw_torch")
    if args.get("use_liger_kernel") is True and _is_absent("liger_kernel"):
        yield _liger(origins.where("trainer.args.use_liger_kernel"))
    for name, reward in experiment.rewards.items():
        for prefix, package, command in _REWARDS:
            if str(reward.fn).startswith(prefix) and _is_absent(package):
                yield ConfigError(
                    f"this reward needs {package}, which is not installed",
                    where=origins.where(f"rewards.{name}.fn"),
                    got=reward.fn,
                    hint=command,
                )


def _is_absent(package: str) -> bool:
    return importlib.util.find_spec(package) is None


def _liger(where: str) -> ConfigError:
    return ConfigError(
        "trainer.args.use_liger_kernel=true needs liger-kernel, which is not installed",
        where=where,
        got="an argument that TRL deprecates, and drops in version 2",
        expected="false: every trainer works without it",
        hint="trainer.args.use_liger_kernel=false",
    )


def _absent(package: str, where: str, got: str, instead: str) -> ConfigError:
    name = package.replace("_", "-")
    return ConfigError(
        f"{got} needs {name}, which is not installed", where=where, got=got, hint=f"pip install {name}, or {instead}"
    )
