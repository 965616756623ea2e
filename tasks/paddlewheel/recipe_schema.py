"""The JSON schema of recipes, as a file: for the form of the DAGs and for the completion of editors.

Use: python -m paddlewheel.recipe_schema recipes/recipe.schema.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from paddlewheel.recipe import adapter


def schema_text() -> str:
    """The schema as canonical JSON text."""
    return json.dumps(adapter().json_schema(), indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(schema_text(), encoding="utf-8")
