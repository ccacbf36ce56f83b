"""What a run tells wandb, TensorBoard, trackio or MLflow: one interface, a file each, and none of them ends a run."""
