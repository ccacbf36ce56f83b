"""Turn an experiment's rewards into one total per row: call, gate, settle, log."""
