"""Locate, build, load and score with policies and reward models, without knowing configurations or sums of rewards."""
