"""Closed-vocabulary baselines on the same files as the models."""
