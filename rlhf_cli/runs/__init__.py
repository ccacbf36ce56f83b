"""Read and write the run folder; reading needs neither torch nor wandb, and works on any machine."""
