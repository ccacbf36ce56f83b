"""Load, check and prepare the data that a trainer sees. Only `loading` imports torch, transformers and datasets."""
