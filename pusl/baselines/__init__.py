"""Texts + known labels -> the best k labels of a closed vocabulary, by systems that are not PUSL."""
