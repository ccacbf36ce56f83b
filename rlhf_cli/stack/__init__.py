"""How the rewards of an experiment become one total a row: call, gate, settle, log."""
