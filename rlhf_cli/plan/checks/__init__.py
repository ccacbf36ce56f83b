"""The checks of `plan/preflight.py`: one file per subject, one function per question.

A check takes the experiment, its composition, and the results of earlier checks. It yields its errors, or raises one if
it cannot continue, and notes its results for later checks.
"""
