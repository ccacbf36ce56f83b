"""Reads what was logged: findings with evidence and advice, the same as warnings in training, rules that end a run."""
