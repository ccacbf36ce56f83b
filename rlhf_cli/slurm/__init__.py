"""Run experiments on Slurm: submit jobs, run them on nodes, query the queue."""
