"""Sends runs to Slurm: what sbatch is given, what runs on a node, what the queue says."""
