# Copyright 2026 The grounded-attention authors. Licensed under the Apache License, Version 2.0.
"""`python -m grounded_attention COMMAND ...`: the command line, where its script is not on the PATH."""

import sys

from grounded_attention.commands.main import main

if __name__ == "__main__":
    sys.exit(main())
