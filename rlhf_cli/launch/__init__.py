"""Turn a validated experiment into running processes: the run folder, the frozen config, the ranks.

Only a rank imports torch.
"""
