"""Lets the packages wait that a library imports only because they are installed, until something of them is used.

TRL imports wandb, PEFT, vLLM, trackio and mlflow where it finds them, whether or not a run will log to them, adapt or
serve; transformers imports SciPy for a loss of object detection. In the context below an import statement *of these
libraries* binds a stand-in for such a package, which imports it when it is called, subclassed or asked for anything.

`sys.modules` is left alone: whoever else imports such a package, a reward for one, gets the package. A package that is
loaded already is never stood in for.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, cast

ASKING = frozenset({"transformers", "trl", "accelerate", "rlhf_cli"})
"""The packages whose import statements are answered with stand-ins: their names are taken, and used later or never."""

WAITING = ("wandb", "weave", "trackio", "mlflow", "peft", "scipy", "vllm")
"""The packages that can wait: nothing of ASKING uses them while it is imported, only when a run has a use for them."""

_BEFORE_LOADED: Mapping[tuple[str, str], object] = {("wandb", "run"): None}
"""(package, name) -> what it is for as long as nobody has imported the package: without wandb there is no wandb run."""


class Later:
    """Stands for a name of a package that waits.

    Nothing is an instance of a class whose package is not imported, so `isinstance` need not import it either.
    """

    def __init__(self, module: str, name: str) -> None:
        self._later_module, self._later_name = module, name

    def _later_real(self) -> object:
        """Import the package, if nobody has, and return what this stands for. Raises ImportError where it is not."""
        module = importlib.import_module(self._later_module)
        try:
            real: object = getattr(module, self._later_name)
            return real
        except AttributeError:
            pass
        try:
            return importlib.import_module(f"{self._later_module}.{self._later_name}")
        except ModuleNotFoundError as error:
            raise ImportError(f"cannot import name {self._later_name!r} from {self._later_module!r}") from error

    def _later_class(self) -> type:
        return cast(type, self._later_real())

    def __call__(self, *args: object, **kwargs: object) -> object:
        """Call what this stands for."""
        return cast("Callable[..., object]", self._later_real())(*args, **kwargs)

    def __getattr__(self, name: str) -> object:
        """Return an attribute of what this stands for."""
        attribute: object = getattr(self._later_real(), name)
        return attribute

    def __instancecheck__(self, one: object) -> bool:
        """Answer isinstance(one, this)."""
        return _root(self._later_module) in sys.modules and isinstance(one, self._later_class())

    def __subclasscheck__(self, one: type) -> bool:
        """Answer issubclass(one, this)."""
        return _root(self._later_module) in sys.modules and issubclass(one, self._later_class())

    def __mro_entries__(self, bases: tuple[object, ...]) -> tuple[type, ...]:
        """Let a class inherit from what this stands for."""
        return (self._later_class(),)

    def __or__(self, other: object) -> object:
        """Answer `PeftConfig | None` in a signature, which nobody reads: typing's own union looks into its members."""
        return Any

    def __ror__(self, other: object) -> object:
        """Answer `None | PeftConfig` in a signature."""
        return Any

    def __repr__(self) -> str:
        """Say what this stands for without importing it."""
        return f"<{self._later_module}.{self._later_name}, imported when it is used>"


class _StandIn(ModuleType):
    """Stands for a package or a module of it, as it is bound by `import wandb` or asked by `from wandb import run`."""

    def __init__(self, name: str, waiting: _Waiting) -> None:
        super().__init__(name)
        self.__dict__["_later_waiting"] = waiting

    def __getattr__(self, name: str) -> object:
        module = self.__name__
        if (module, name) in _BEFORE_LOADED and module not in sys.modules:
            return _BEFORE_LOADED[module, name]
        is_dunder = name.startswith("__") and name.endswith("__")
        if self.__dict__["_later_waiting"].is_open and not is_dunder:
            return Later(module, name)
        attribute: object = getattr(importlib.import_module(module), name)
        return attribute


class _Waiting:
    """What import statements are answered with while the context is open."""

    def __init__(self, packages: Collection[str]) -> None:
        self.is_open = True
        self._packages = frozenset(packages)
        self._import = builtins.__import__

    def __call__(
        self,
        name: str,
        globals: Mapping[str, object] | None = None,
        locals: Mapping[str, object] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        """Be `__import__`."""
        root = _root(name)
        if level == 0 and root in self._packages and root not in sys.modules and _asks(globals):
            return _StandIn(name, self) if fromlist else self._whole(name)
        return self._import(name, globals, locals, fromlist or (), level)

    def _whole(self, name: str) -> _StandIn:
        """Return what `import a.b.c` binds: a stand-in for `a` that has one for `b`, which has one for `c`."""
        parent, _, last = name.rpartition(".")
        whole = inner = self._whole(parent) if parent else _StandIn(name, self)
        for part in parent.split(".")[1:]:
            inner = vars(inner)[part]
        if parent:
            vars(inner)[last] = _StandIn(name, self)
        return whole


def _root(name: str) -> str:
    return name.partition(".")[0]


def _asks(of: Mapping[str, object] | None) -> bool:
    """Return whether the module of these globals is one whose imports may wait."""
    return of is not None and _root(str(of.get("__name__"))) in ASKING


@contextlib.contextmanager
def later_imports(*, but: Collection[str] = ()) -> Iterator[None]:
    """Open a context in which the installed packages of WAITING, `but` these, wait when a library imports them."""
    packages = [one for one in WAITING if one not in but and importlib.util.find_spec(one) is not None]
    waiting = _Waiting(packages)
    before, builtins.__import__ = builtins.__import__, waiting
    try:
        yield
    finally:
        waiting.is_open = False
        builtins.__import__ = before
