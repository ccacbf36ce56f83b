"""Makes the HTML report of runs: one file that asks no network for anything, a module a section of it."""
