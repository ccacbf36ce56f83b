"""Ready-made rewards: strings and token ids in, one number per row out. Does not import torch."""
