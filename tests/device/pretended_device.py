"""Pretend an accelerator: tensors on device `pretend:0`, which refuse on a CPU what a GPU refuses.

Such a tensor is a wrapper round one of the CPU, and every operation computes with what is inside: the numbers are the
CPU's. What a GPU refuses raises, and is kept as a violation: a tensor of the CPU in an operation with one of the device
(a number without dimensions is allowed, and so is an index), `.numpy()`, a generator of the CPU. What makes a GPU's
host wait is counted, by the place that asked for it: a number read (`.item()`, bool, int), a copy to the CPU, and what
has to know how many (nonzero, a bool as index).

torch has a key for devices that others bring, PrivateUse1, which `pretend` takes here for the rest of the process.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "pretend"
_WAITS = {"_local_scalar_dense", "equal", "nonzero", "masked_select", "_unique2", "unique_dim", "is_nonzero"}
"""Operations whose result the host has to know; indices are looked at apart."""
_COPIES = {"copy_", "_to_copy", "_foreach_copy_"}
_TAKES_INDICES = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put"}
_PACKAGES = ("rlhf_cli", "trl", "transformers")


class Violation(RuntimeError):
    """What a GPU would have raised."""


@dataclass
class Seen:
    """What happened on the device: violations in words, and waits as (operation, package, file and function)."""

    violations: list[str] = field(default_factory=list)
    waits: Counter[tuple[str, str, str]] = field(default_factory=Counter)

    def wait(self, operation: str) -> None:
        """Count a wait for the nearest function of ours, TRL's or transformers'."""
        self.waits[(operation, *_place())] += 1

    def refuse(self, what: str) -> Violation:
        """Keep a violation, and return what to raise."""
        package, place = _place()
        self.violations.append(f"{what} in {package}/{place}")
        return Violation(what)


SEEN = Seen()


def _place() -> tuple[str, str]:
    """Return (package, file and function) of the nearest frame that is of ours, of TRL or of transformers."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        for package in _PACKAGES:
            _, found, inner = file.rpartition(f"{os.sep}{package}{os.sep}")
            if found:
                return package, f"{inner}:{frame.f_code.co_name}"
        frame = frame.f_back
    return "", ""


class OnDevice(torch.Tensor):
    """A tensor of the device; `inside` is that of the CPU."""

    inside: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inside: torch.Tensor, requires_grad: bool = False) -> OnDevice:
        assert not isinstance(inside, OnDevice)
        wrapper = torch.Tensor._make_wrapper_subclass(
            cls,
            inside.size(),
            strides=inside.stride(),
            storage_offset=inside.storage_offset(),
            dtype=inside.dtype,
            layout=inside.layout,
            device=torch.device(NAME, 0),
            requires_grad=requires_grad,
        )
        wrapper.inside = inside
        return wrapper

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def __repr__(self, **_: Any) -> str:
        return f"OnDevice({self.inside})"

    @classmethod
    def __torch_dispatch__(cls, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _compute(operation, args, kwargs or {})

    def tolist(self) -> Any:
        SEEN.wait("tolist")
        return self.inside.tolist()

    def numpy(self, **_: Any) -> Any:
        raise SEEN.refuse(".numpy() of a tensor of the device")

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise SEEN.refuse("numpy reads a tensor of the device")

    # Its storage has no bytes; what compares addresses, and what writes files, asks for the one inside.
    def untyped_storage(self) -> torch.UntypedStorage:
        return self.inside.untyped_storage()

    def data_ptr(self) -> int:
        return self.inside.data_ptr()

    def __deepcopy__(self, memo: dict[int, Any]) -> OnDevice:
        copied = OnDevice(self.inside.clone(), self.requires_grad)
        if getattr(self, "_is_param", False):
            copied._is_param = True
        memo[id(self)] = copied
        return copied

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _restored, (self.inside, self.requires_grad)


_loads_to: list[torch.device | None] = [None]


def _restored(inside: torch.Tensor, requires_grad: bool) -> torch.Tensor:
    """Return a tensor of the device from a file, if `torch.load` gets that device."""
    device = _loads_to[-1]
    return OnDevice(inside, requires_grad) if device is None or device.type == NAME else inside


_load = torch.load


def _load_to(*args: Any, map_location: Any = None, **named: Any) -> Any:
    device = torch.device(map_location) if isinstance(map_location, str) else map_location
    if device is not None and not isinstance(device, torch.device):
        return _load(*args, map_location=map_location, **named)
    _loads_to.append(device)
    try:
        loaded = _load(*args, map_location="cpu", **named)
    finally:
        _loads_to.pop()
    if device is None or device.type != NAME:
        return loaded
    return tree_map_only(torch.Tensor, lambda one: one if isinstance(one, OnDevice) else OnDevice(one), loaded)


def _wrapped(inside: torch.Tensor) -> OnDevice:
    """Wrap a tensor; in inference mode a view of another tensor is no inference tensor."""
    with torch.inference_mode(inside.is_inference()) if torch.is_inference_mode_enabled() else contextlib.nullcontext():
        return OnDevice(inside)


def _compute(operation: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    name = operation.overloadpacket.__name__
    leaves = tree_leaves((args, kwargs))
    own = [one for one in leaves if isinstance(one, OnDevice)]
    device = None if kwargs.get("device") is None else torch.device(kwargs["device"])
    inner_args, inner = tree_map_only(OnDevice, lambda one: one.inside, (args, dict(kwargs)))
    if device is not None and device.type == NAME:
        inner["device"] = torch.device("cpu")
    if not own:  # made on the device, or brought to it
        made = operation(*inner_args, **inner)
        if name in _COPIES and made is args[0]:
            made = made.clone()
        return tree_map_only(torch.Tensor, OnDevice, made)
    _look(name, args, leaves, to_cpu=name in _COPIES and (device is not None and device.type == "cpu"))
    made = operation(*inner_args, **inner)
    if name == "copy_":
        return args[0]
    if device is not None and device.type != NAME:
        return made
    wrapped = tree_map_only(torch.Tensor, _wrapped, made)
    is_view = any(one.alias_info is not None for one in operation._schema.returns)
    if operation._schema.is_mutable or (is_view and not torch.is_inference_mode_enabled()):
        return return_and_correct_aliasing(operation, args, kwargs, wrapped)
    return wrapped


def _look(name: str, args: Any, leaves: list[Any], *, to_cpu: bool) -> None:
    """Raise a violation if an operation with a tensor of the device is one; count it if the host waits for it."""
    of_cpu = [one for one in leaves if isinstance(one, torch.Tensor) and not isinstance(one, OnDevice)]
    if name in _COPIES:
        if to_cpu or (name == "copy_" and not isinstance(args[0], OnDevice)):
            SEEN.wait("copy to the CPU")
        elif of_cpu:
            SEEN.wait("copy to the device")
        return
    if name in _WAITS:
        SEEN.wait(name)
    if name in _TAKES_INDICES and isinstance(args[0], OnDevice):
        indices = [one for one in args[1] if one is not None]
        fills = name != "index" and args[2].numel() == 1
        if not fills and any(one.dtype == torch.bool for one in indices):
            SEEN.wait(f"{name} by bool")
        if any(not isinstance(one, OnDevice) and one.dim() for one in indices):
            SEEN.wait("copy to the device")
        of_cpu = [one for one in of_cpu if all(one is not index for index in indices)]
    if name == "repeat_interleave" and args and isinstance(args[-1], OnDevice):
        SEEN.wait(name)
    for one in of_cpu:
        if one.dim():
            raise SEEN.refuse(f"{name} with a tensor of the CPU of shape {tuple(one.shape)}")
    if any(isinstance(one, torch.Generator) and one.device.type == "cpu" for one in leaves):
        raise SEEN.refuse(f"{name} with a generator of the CPU")


class _Factories(TorchDispatchMode):
    """See what makes a tensor of the device, which no wrapper is given to."""

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not any(map(_is_of_device, tree_leaves((args, kwargs)))):
            return operation(*args, **kwargs)
        if operation._can_decompose():  # in inference mode `to` comes as it was called
            with self:
                return operation.decompose(*args, **kwargs)
        return _compute(operation, args, kwargs)


def _is_of_device(one: object) -> bool:
    return isinstance(one, OnDevice) or (isinstance(one, torch.device) and one.type == NAME)


def _module() -> Any:
    """Return what torch asks of a device's module; its random numbers are the CPU's."""

    def nothing(*_: object, **__: object) -> None: ...

    return SimpleNamespace(
        is_initialized=lambda: True,
        is_available=lambda: True,
        current_device=lambda: 0,
        device_count=lambda: 1,
        _is_in_bad_fork=lambda: False,
        get_rng_state=lambda device=None: torch.get_rng_state(),
        set_rng_state=lambda state, device=None: torch.set_rng_state(state),
        get_amp_supported_dtype=lambda: [torch.bfloat16, torch.float16],
        is_bf16_supported=lambda *_: True,
        memory_allocated=lambda *_: 0,
        device=lambda *_: contextlib.nullcontext(),
        **dict.fromkeys(("set_device", "manual_seed", "manual_seed_all", "synchronize", "empty_cache"), nothing),
    )


@contextlib.contextmanager
def pretended_device() -> Iterator[Seen]:
    """Have device `pretend:0` from now on, and look at what is done with it while this context is open."""
    if torch._C._get_privateuse1_backend_name() != NAME:
        _setup_privateuseone_for_python_backend(NAME, backend_module=_module())
        torch.serialization.add_safe_globals([_restored])
    torch._C._set_only_lift_cpu_tensors(True)
    torch.__future__.set_swap_module_params_on_conversion(True)  # a parameter stays the same object, as on a GPU
    torch.load = _load_to
    try:
        with _Factories():
            yield SEEN
    finally:
        torch.load = _load
        torch.__future__.set_swap_module_params_on_conversion(False)
        torch._C._set_only_lift_cpu_tensors(False)
