"""Plans a run before it starts: columns, rewards, batch arithmetic, memory. It does not import torch.

Besides `assemble`, only this package knows both the configuration and the other packages. It uses only their torch-free
parts.
"""
