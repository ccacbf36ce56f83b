"""Says what a completion is worth, by name: strings and token ids in, one number a row out. It imports no torch."""
