"""From an experiment to a ready trainer: the last place where a configuration object exists."""
