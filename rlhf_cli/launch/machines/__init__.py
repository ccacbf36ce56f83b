"""Trains a run on several machines: where they meet, what they tell one another, who decides what became of it."""
