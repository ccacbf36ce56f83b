"""Holds the checks of `plan/preflight.py`: a file a subject, a function a question.

A check takes the experiment, how it was composed, and what the checks before it have found out. It yields what is
wrong, or raises it where it can say nothing more, and notes what it found for those that come after.
"""
