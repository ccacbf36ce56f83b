"""Estimates how many bytes of memory a run takes, part by part, before loading anything. No file here imports torch."""
