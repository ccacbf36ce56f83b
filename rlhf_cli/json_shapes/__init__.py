"""What every verb prints with `--json`, typed: `rlhf schema VERB` makes JSON Schema of them, tests hold verbs to it."""
