"""What an evaluation measures, as values: means, intervals, accuracies. Nothing here draws or generates."""
