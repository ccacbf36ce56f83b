"""The checks of `plan/preflight.py`: one file per subject, one generator per question; facts.py defines their form."""
