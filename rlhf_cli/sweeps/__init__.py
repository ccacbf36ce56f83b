"""Makes several runs of one command: which they are, what they are called, how they run, and how they go on."""
