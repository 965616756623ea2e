"""`python -m paddlewheel.cli`."""

import sys

from paddlewheel.cli import main

sys.exit(main())
