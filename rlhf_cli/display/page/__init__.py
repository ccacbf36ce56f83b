"""The HTML report of runs: one file that makes no network requests. Each section has its own module."""
