"""Hold the sections of an experiment that are ours, as strict pydantic models."""
