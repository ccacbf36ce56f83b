"""Mirror runs in wandb, or report them to TensorBoard, trackio or MLflow; no tracker error ends a run."""
