"""From a judged experiment to running processes: the run folder, the frozen config, the ranks. No torch."""
