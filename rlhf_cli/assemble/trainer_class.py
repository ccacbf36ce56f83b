"""Look up the classes that a trainer's section names: TRL's, or the user's subclass."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING

from rlhf_cli.config.schema.trainer_section import Trainer
from rlhf_cli.errors import ConfigError, Prose
from rlhf_cli.stack.reward_functions import import_function

if TYPE_CHECKING:
    from rlhf_cli.trainers.trl_protocol import TrlArguments

_KEY = "trainer.class"


def import_trainer(section: Trainer) -> None:
    """Import TRL's trainer and config class; TRL imports them lazily on attribute access."""
    module = _module(section)
    for name in (section.row.config_class, section.trl):
        getattr(module, name)


def trainer_class_of(section: Trainer) -> type:
    """Return the trainer's class. Raise ConfigError if the user's class does not inherit from TRL's."""
    trl_class: type = getattr(_module(section), section.trl)
    if section.own_class is None:
        return trl_class
    own: object = import_function(section.own_class, where=_KEY)
    if not (isinstance(own, type) and issubclass(own, trl_class)):
        raise ConfigError(
            f"this is no {section.trl}",
            where=_KEY,
            got=section.own_class,
            expected=f"class {getattr(own, '__name__', 'MyTrainer')}({section.trl})",
            hint=Prose("trainer.trl names the class of TRL's that yours inherits from"),
        )
    return own


def config_class_of(section: Trainer) -> Callable[..., TrlArguments]:
    """Return the config dataclass of the trainer."""
    config_class: Callable[..., TrlArguments] = getattr(_module(section), section.row.config_class)
    return config_class


def _module(section: Trainer) -> ModuleType:
    # TRL warns about experimental trainers; naming one in the configuration counts as consent.
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    return importlib.import_module(section.row.module)
