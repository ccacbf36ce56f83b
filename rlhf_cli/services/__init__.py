"""Ask servers: requests with retries, chat completions, and a reply cache on disk. Does not import torch."""
