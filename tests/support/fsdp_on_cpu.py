"""Real FSDP 2 on CPUs, for tests alone: accelerate drops it there without a word, and runs plain DDP in its place.

`AcceleratorState.__init__` (accelerate 1.15, state.py:988) looks at the plugin of GPUs and the like alone. Where it was
given one and came out as MULTI_CPU it is told to be FSDP, as it would be on GPUs; all that follows is accelerate's and
torch's own: parameters are DTensors in shards, gathered through gloo.
"""

from __future__ import annotations

from typing import Any

import pytest
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType


def fsdp_on_cpu(patch: pytest.MonkeyPatch) -> None:
    """Let accelerate run FSDP where it was asked for on a CPU, as long as `patch` lasts."""
    init = AcceleratorState.__init__

    def told(self: AcceleratorState, *args: Any, fsdp_plugin: Any = None, **named: Any) -> None:
        is_new = not AcceleratorState._shared_state
        init(self, *args, fsdp_plugin=fsdp_plugin, **named)
        if is_new and fsdp_plugin is not None and self.distributed_type == DistributedType.MULTI_CPU:
            self.distributed_type = DistributedType.FSDP
            self.fsdp_plugin = fsdp_plugin
            PartialState._shared_state["distributed_type"] = DistributedType.FSDP

    patch.setattr(AcceleratorState, "__init__", told)
