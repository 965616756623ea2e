"""What docs/sources.md shows is taken as it stands there."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import TypeAdapter

from paddlewheel.data.readers import ReadJob, custom
from paddlewheel.recipe_check_sources import check_origin
from paddlewheel.recipe_data import Source

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "sources.md").read_text(encoding="utf-8")
SNIPPETS = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)]


@pytest.mark.parametrize("tree", [tree for tree in SNIPPETS if tree.keys() & {"rows", "source"}])
def test_a_whole_source_is_sound(tree: dict[str, Any]) -> None:
    ((name, fields),) = tree.items()
    source = TypeAdapter(Source).validate_python(fields)
    assert list(check_origin("data.rows", source, by_day=name == "rows")) == []


def test_the_table_of_pictures_is_sound() -> None:
    (fields,) = [tree for tree in SNIPPETS if "table" in tree.get("params", {})]
    source = TypeAdapter(Source).validate_python({"name": "photos", "format": "images", **fields})
    assert list(check_origin("data.rows", source, by_day=True)) == []


def test_the_reader_of_ones_own_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (fields,) = [tree for tree in SNIPPETS if ":" in tree.get("format", "")]
    names: dict[str, Any] = {
        "itertools": itertools, "Path": Path, "Mapping": Mapping, "Iterator": Iterator, "Any": Any,
    }  # fmt: skip
    exec(code, names)
    monkeypatch.setattr(custom, "load_function", lambda name: {"readers.fixed_width:read": names["read"]}[name])
    path = tmp_path / "a.txt"
    path.write_text("00000042Anna        \n00000007Bo          \n")
    columns = [{"name": "id", "type": "int64"}, {"name": "name", "type": "string"}]
    source = TypeAdapter(Source).validate_python({"name": "own", "path": "x/*.txt", "columns": columns, **fields})
    (chunk,) = custom.read(ReadJob(name="a.txt", source=source, path=path))
    assert chunk.frame.rows() == [("00000042", "Anna"), ("00000007", "Bo")]
