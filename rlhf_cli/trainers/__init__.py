"""TRL's trainers, with ours around their narrow seams. Knows neither configurations nor data nor rewards."""
