"""Compute with tensors and numbers alone: nothing here reads a file, draws a random number or changes an argument."""
