"""Print the dependencies that a pyproject.toml names, one a line, for pip's --requirement."""

import sys
import tomllib
from pathlib import Path

print("\n".join(tomllib.loads(Path(sys.argv[1]).read_text())["project"]["dependencies"]))
