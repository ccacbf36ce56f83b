"""Turn what the user typed into an experiment: Hydra composes it, pydantic validates it, one message explains errors.

This package does not import torch.
"""
