"""What the user asked for: composed by Hydra, judged by pydantic, explained in one message. No torch."""
