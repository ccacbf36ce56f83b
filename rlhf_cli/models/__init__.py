"""Locate, build, load and score with policies and reward models.

This package knows nothing about configurations or about sums of rewards.
"""
