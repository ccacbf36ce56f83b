"""Draws pictures of what was measured, as files."""
