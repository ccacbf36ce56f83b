"""Uses of n completions per prompt: best-of-n, preference pairs, and answers worth training on. No torch."""
