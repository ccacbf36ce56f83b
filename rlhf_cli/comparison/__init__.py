"""Puts runs side by side as values: read, named by what differs, grouped over seeds, estimated, judged in words."""
