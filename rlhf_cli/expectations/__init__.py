"""Holds a run against what it was expected to come to, and against itself run again, as values."""
