"""A language model behind an OpenAI-compatible endpoint: client, stored answers, judge, zero-shot generator."""
