"""Extend TRL's trainers around their narrow seams. Nothing here knows configurations, data or rewards."""
