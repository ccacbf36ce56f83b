"""Says how many bytes of memory a run takes, part by part, before anything is loaded: no file here imports torch."""
