"""A catalog file -> a predictions file: streamed, sharded, resumable, on one machine or on Ray."""

from pusl.catalog.run import generate_catalog

__all__ = ["generate_catalog"]
