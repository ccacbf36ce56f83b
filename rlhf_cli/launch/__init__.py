"""From a judged experiment to running processes: the run folder, the frozen config, one process or several. No torch."""
