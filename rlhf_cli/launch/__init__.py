"""Leads from a judged experiment to running processes: the run folder, the frozen config, the ranks.

Only a rank imports torch.
"""
