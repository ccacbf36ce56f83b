"""Tries the rewards of an experiment on real rows before a training does: texts that ought not to be paid for."""
