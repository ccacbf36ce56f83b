"""Create a new project: the questions of `rlhf init` and the files that it writes from templates. No torch."""
