"""Checkpoint + text -> k keyphrases: Algorithm 1, unique decoding, universe constraint, scores."""
