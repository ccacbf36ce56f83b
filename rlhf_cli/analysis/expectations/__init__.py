"""Compare a run with its expectations, and with a repetition of itself."""
