"""From the words a user typed to finished work: prepare an experiment, run it once, sweep it."""
