"""Tables of facts about TRL's trainers and our own options, one row each. The words of a configuration derive from
them.
"""
