"""Asks a server: requests with retries, chat completions, replies kept on disk. No torch."""
