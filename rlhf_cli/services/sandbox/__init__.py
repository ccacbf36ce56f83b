"""Run model-written code in isolation."""
