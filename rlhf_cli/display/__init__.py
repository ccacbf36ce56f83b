"""Terminal output: panels before and after a run, and tables of runs and evaluations."""
