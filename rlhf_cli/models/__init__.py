"""Locates, builds, loads and scores with policies and reward models.

It knows nothing of configurations or of rewards as a sum.
"""
