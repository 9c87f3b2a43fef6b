"""A model behind HTTP: gateway, shared batches, model processes, and a page to try it."""
