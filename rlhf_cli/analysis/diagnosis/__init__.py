"""Diagnose logged metrics: findings with evidence and advice, warnings during training, stopping rules."""
