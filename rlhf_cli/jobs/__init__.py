"""Leads from the words a user typed to finished work: prepares an experiment, runs it once, sweeps it."""
