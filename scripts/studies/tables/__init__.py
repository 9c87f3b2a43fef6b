"""The sources' tables and figures, one module per source; see registry.py."""
