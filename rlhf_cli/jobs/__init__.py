"""Turns the words a user typed into finished work: prepares an experiment, runs it once, sweeps it."""
