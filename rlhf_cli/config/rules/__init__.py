"""Rules that need more than one key: every problem with a section, each with its place and a way out."""
