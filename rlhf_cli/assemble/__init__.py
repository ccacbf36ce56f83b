"""Build a ready trainer of an experiment: the last place where a configuration object exists."""
