"""Prints what a person sees at the terminal: panels before and after a run, tables of runs and evaluations."""
