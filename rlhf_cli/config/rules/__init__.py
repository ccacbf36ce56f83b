"""Holds the rules that need more than one key: each yields its problems, with their place and a way out."""
