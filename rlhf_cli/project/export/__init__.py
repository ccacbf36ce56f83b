"""Export a run as a model folder to share: whole weights, tokenizer, model card, no secrets."""
