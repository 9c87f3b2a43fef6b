"""Files and simulations -> example files: convert, split, thin, describe, simulate."""
