"""Makes of a run a model folder to give away: whole weights, tokenizer, a card that says what it is, nothing secret."""
