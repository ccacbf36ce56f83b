"""Build a trainer from an experiment; no code below this layer sees a configuration object."""
