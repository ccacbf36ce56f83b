"""What a run will do, worked out before anything is paid for: columns, rewards, batch arithmetic. No torch.

The one place beside `assemble` that knows both the configuration and the rooms; it uses only their torch-free parts.
"""
