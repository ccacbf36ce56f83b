"""Reads and writes the run folder, the product's memory.

Reading it never needs torch, wandb or the machine that wrote it.
"""
