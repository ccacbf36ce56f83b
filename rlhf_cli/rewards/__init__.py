"""Rewards: what a completion is worth, by name. Strings and token ids in, one number a row out. No torch."""
