"""Evaluation of a trained reward model or policy on unseen rows, and scoring of completions from a file.

`evaluation_target` works without torch, so that `rlhf eval` can report mistakes before any heavy import.
"""
