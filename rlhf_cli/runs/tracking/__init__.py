"""Mirror runs in wandb, TensorBoard, trackio or MLflow: one interface, one file each; no tracker error ends a run."""
