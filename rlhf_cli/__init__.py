"""Describes, runs, sweeps and compares RLHF experiments from the command line."""

__version__ = "0.1.0"
