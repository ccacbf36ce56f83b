"""The small experiment of tests/trainers, for what goes on around a run."""

from tests.trainers.conftest import model_cache, train, workplace

__all__ = ["model_cache", "train", "workplace"]
