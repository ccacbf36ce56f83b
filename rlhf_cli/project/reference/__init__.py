"""Describe rewards, trainer arguments and keys, as values read from the sources and the schema."""
