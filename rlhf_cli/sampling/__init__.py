"""What n completions a prompt are good for, as values: the best of them, pairs, answers worth training on. No torch."""
