"""rlhf: the tool with which people run RLHF experiments."""

__version__ = "0.1.0"
