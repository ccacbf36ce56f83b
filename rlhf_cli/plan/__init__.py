"""Works out what a run will do before anything is paid for: columns, rewards, batch arithmetic. It imports no torch.

This is the one place beside `assemble` that knows both the configuration and the rooms; it uses only their torch-free
parts.
"""
