"""Stored rollouts settled again: what other weights, gates or aggregates would have made of them, without training."""
