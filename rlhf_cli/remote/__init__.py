"""Asks a server: sends requests with retries and chat completions, and keeps replies on disk. It imports no torch."""
