"""Validation rules that involve several keys: each yields its problems, with their place and a suggested fix."""
