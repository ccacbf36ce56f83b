"""Recompute stored rollouts with other weights, gates or aggregates, without training."""
