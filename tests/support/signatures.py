"""What a function of another library asks for, and the trainers that generate."""

from __future__ import annotations

import inspect

import trl

ON_POLICY = [trl.GRPOTrainer, trl.RLOOTrainer]


def parameters(function) -> list[str]:
    return list(inspect.signature(function).parameters)
