"""Estimate advantages: one file per estimator, with the part of every named reward. TRL computes GRPO's and RLOO's."""
