"""The HTML report of runs: one file that makes no network requests."""
