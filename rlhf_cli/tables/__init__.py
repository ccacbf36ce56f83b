"""List what is known of TRL's trainers and of our own forms, one row each; the words of a configuration derive from
it.
"""
