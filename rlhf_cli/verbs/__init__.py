"""One file a command. Each has `run(argv) -> exit code` and a docstring that is its help."""
