"""Read and write the run folder.

Reading needs neither torch nor wandb, and works on any machine.
"""
