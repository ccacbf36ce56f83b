"""TRL's trainers, with ours around their narrow seams. Knows nothing of configurations, files of data or functions of rewards."""
