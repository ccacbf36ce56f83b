"""Compute with tensors and numbers only: no file access, no random numbers, no changes to arguments."""
