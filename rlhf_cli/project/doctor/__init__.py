"""Check what this machine has and lacks for training: one function and one result per check. Does not import torch."""
