"""Turn a user's command line into finished work: prepare an experiment, run it once, sweep it."""
