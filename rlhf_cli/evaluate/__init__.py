"""Room of the evaluation: what a trained reward model or policy is worth, on rows it has not seen.

`target` works without torch, so that `rlhf eval` can say what is wrong before anything heavy is imported.
"""
