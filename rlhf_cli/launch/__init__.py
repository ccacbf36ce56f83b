"""Turn a validated experiment into running processes. Only a rank imports torch."""
