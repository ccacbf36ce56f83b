"""Policies and reward models: found, built, loaded, scored. Knows nothing of configurations or of rewards as a sum."""
