"""Turn typed words into an experiment, without torch: Hydra composes, pydantic validates, one message explains."""
