"""Measures: means, intervals, accuracies, as dataclasses and their JSON. Nothing here draws or generates."""
