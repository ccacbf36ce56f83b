"""Asks what this machine has and lacks to train on: a function a question, a value an answer. No torch."""
