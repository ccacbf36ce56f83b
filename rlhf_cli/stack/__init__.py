"""Turn the rewards of an experiment into one total a row: call, gate, settle, log."""
