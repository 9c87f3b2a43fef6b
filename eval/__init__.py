"""Predictions + incomplete references -> honest numbers (numpy and scipy only; METRICS in docs/METRICS.md)."""
