"""Knows the data: where rows come from, whether they are sound, what the trainer sees of them.

Everything here but `loading` works without torch, transformers and datasets, so that `rlhf check` can ask it.
"""
