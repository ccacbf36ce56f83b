"""Pictures of what was measured, as files."""
