"""Turn a validated experiment into running processes, of which only a rank imports torch."""
