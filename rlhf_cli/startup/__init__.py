"""Imports the training libraries in the time that it takes, and not in twice that."""
