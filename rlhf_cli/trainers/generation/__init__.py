"""Changes to how TRL's trainers generate."""
