"""Imports torch, transformers and TRL without what stands in the way of it; training is as it would be otherwise."""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import sys
from collections.abc import Callable, Collection, Iterator

from rlhf_cli.for_a_while import with_values
from rlhf_cli.startup.later_imports import later_imports
from rlhf_cli.startup.read_once import distributions_when_asked, read_models_once


@contextlib.contextmanager
def quick_imports(*, needed: Collection[str] = ()) -> Iterator[None]:
    """Open a context to import training libraries in; `needed` are the packages a run is known to have a use for.

    The garbage collector waits, as modules stay: it would look through all that is there again and again, a fifth of
    the seconds. It never looks at them again afterwards either (`gc.freeze`), which spares every collection of a run.
    Where they were imported before it is left alone: what is there by then may be the garbage of another run.
    """
    is_collecting, is_first = gc.isenabled(), "transformers" not in sys.modules
    gc.disable()
    try:
        with later_imports(but=needed), distributions_when_asked():
            import transformers  # noqa: F401  read_models_once is of no use before it

            read_models_once()
            with _asking_nobody():
                yield
        if is_first:
            gc.freeze()
    finally:
        if is_collecting:
            gc.enable()


@contextlib.contextmanager
def _asking_nobody() -> Iterator[None]:
    """Open a context in which libraries are given two questions that are answered without importing what they ask for.

    Both answers are those of the functions they stand for: no model is PEFT's as long as nobody has imported PEFT.
    """
    import accelerate.utils
    import transformers
    import transformers.integrations

    is_peft_model: Callable[[object], bool] = accelerate.utils.is_peft_model

    def is_peft_model_when_imported(model: object) -> bool:
        return "peft" in sys.modules and is_peft_model(model)

    def is_wandb_installed() -> bool:
        return importlib.util.find_spec("wandb") is not None

    with contextlib.ExitStack() as stack:
        stack.enter_context(with_values(accelerate.utils, is_peft_model=is_peft_model_when_imported))
        for module in (transformers, transformers.integrations):
            stack.enter_context(with_values(module, is_wandb_available=is_wandb_installed))
        yield
