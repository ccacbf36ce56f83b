"""Evaluates a trained reward model or policy on rows it has not seen, and scores completions from a file.

`evaluation_target` works without torch, so that `rlhf eval` can say what is wrong before anything heavy is imported.
"""
