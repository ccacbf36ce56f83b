"""Make advantages of rewards: one file per estimator, each with its advantages and the part of every named reward."""
