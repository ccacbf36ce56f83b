"""Generates with causal language models of transformers: batches that finished rows leave.

It knows nothing of trainers, configurations or rewards.
"""
