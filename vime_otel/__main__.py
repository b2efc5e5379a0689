"""`python -m vime_otel` is the command `vime-otel`."""

import sys

from .cli.main import main

if __name__ == "__main__":
    sys.exit(main())
