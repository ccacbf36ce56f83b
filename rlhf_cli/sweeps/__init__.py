"""Several runs from one command."""
