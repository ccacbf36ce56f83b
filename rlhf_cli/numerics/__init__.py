"""Numerics: tensors in, tensors out. No files, no random numbers, no argument changed in place."""
