"""Generate with transformers' causal language models, removing finished rows from the batch.

This package does not depend on trainers, configurations or rewards.
"""
