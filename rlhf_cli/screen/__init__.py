"""What a person sees at the terminal: panels before and after a run, tables of runs."""
