"""`python -m pusl` is the `pusl` command."""

import sys

from pusl.cli import main

sys.exit(main())
