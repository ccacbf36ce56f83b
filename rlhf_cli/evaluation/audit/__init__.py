"""Audit the rewards of an experiment before training: score degenerate answers to real rows."""
