"""Seams on how TRL's trainers generate."""
