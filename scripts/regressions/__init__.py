"""Regressions that are planted, one at a time, to see whether what the toy experiments expect tells them."""
