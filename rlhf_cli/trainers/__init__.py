"""Extend TRL's trainers at a few methods. This package does not depend on configurations, data or rewards."""
