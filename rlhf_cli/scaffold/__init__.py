"""Makes a project of one's own: what `rlhf init` asks, and the files that it writes from templates. No torch."""
