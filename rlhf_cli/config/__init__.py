"""Turns what the user asked for into an experiment: Hydra composes it, pydantic judges it, one message explains it.

Nothing here imports torch.
"""
