"""Sweeps: several runs of one command. Define, name, run and resume their jobs."""
