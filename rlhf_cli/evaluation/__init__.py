"""Evaluate a trained reward model or policy on unseen rows, and score completions from a file."""
