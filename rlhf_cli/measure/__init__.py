"""Measurements: means, intervals and accuracies, as dataclasses and JSON. Nothing here draws or generates."""
