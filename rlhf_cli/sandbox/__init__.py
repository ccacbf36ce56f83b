"""Runs model-written code where it can do no harm."""
