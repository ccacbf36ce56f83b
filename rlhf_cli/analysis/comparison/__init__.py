"""Compare runs: read them, name them by their differences, group them over seeds, estimate, and state verdicts."""
