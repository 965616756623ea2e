"""Scoring a file of raw rows by a published model: the same features and network as in training."""

from __future__ import annotations

import glob
import os
from pathlib import Path

import polars as pl

from paddlewheel.errors import DataError, RecipeError
from paddlewheel.registry import champion, list_versions
from paddlewheel.storage import Store

COMPRESSED = (".gz", ".zst")
DELIMITERS = {".csv": ",", ".tsv": "\t"}
JSON_LINES = (".jsonl", ".ndjson")


def predict_file(store: Store, name: str, version: int | None, source: Path, output: Path) -> int:
    """Write `source`'s rows with a column `probability` to `output`, in the format of its name; returns the rows.

    version None takes the champion. Raises RecipeError for an unknown model, DataError for rows it cannot score or a
    name that tells no format.
    """
    from paddlewheel.export import load_bundle

    if version is None:
        current = champion(store, name)
        if current is None:
            raise RecipeError(f"no model {name!r} in {store.root}; `paddlewheel models list` shows them")
        version = current.version
    versions = {found.version for found in list_versions(store, name)}
    if version not in versions:
        known = ", ".join(map(str, sorted(versions))) or "none"
        raise RecipeError(f"{name} has no version {version}; there are {known}")
    if output.suffix in COMPRESSED:
        raise DataError(f"cannot write {output}: name it .parquet, .jsonl, .tsv or .csv, and compress it afterwards")
    if output.exists() and output.samefile(source):
        raise DataError(f"cannot write {output}: it is the file that is read; name another --output")
    frame = read_rows(source)  # before the bundle: Paddle takes seconds to import
    if "probability" in frame.columns:
        raise DataError(f"{source} has a column 'probability' of its own, which the output's would replace; rename it")
    bundle = load_bundle(store, f"models/{name}/versions/{version}/manifest.json")
    scored = frame.with_columns(probability=pl.Series(bundle.predict(frame)))
    temporary = output.with_name(f".tmp-{os.getpid()}-{output.name}")
    try:
        if output.suffix == ".parquet":
            scored.write_parquet(temporary)
        elif output.suffix in JSON_LINES:
            scored.write_ndjson(temporary)
        else:
            scored.write_csv(temporary, separator=DELIMITERS.get(output.suffix, ","))
        os.replace(temporary, output)
    except OSError as error:
        raise DataError(f"cannot write {output}: {error.strerror or error}") from error
    except pl.exceptions.PolarsError as error:
        raise DataError(f"cannot write {output}: {str(error).splitlines()[0]}") from error
    finally:
        temporary.unlink(missing_ok=True)
    return scored.height


def read_rows(source: Path) -> pl.DataFrame:
    """The rows of a file by its name: .parquet, .jsonl (.ndjson), .tsv, else CSV; with .gz or .zst decompressed.

    The columns of CSV and TSV are texts, those of JSON Lines as all their values are; features take them to their
    declared types. Raises DataError naming the file.
    """
    suffix = Path(source.stem).suffix if source.suffix in COMPRESSED else source.suffix
    if source.is_dir():
        raise DataError(f"cannot read {source}: it is a folder; name a file")
    place = glob.escape(str(source))  # polars takes * ? [ in a name for those of many files
    try:
        if suffix == ".parquet":
            return pl.read_parquet(place)
        if suffix in JSON_LINES:
            return pl.read_ndjson(place, infer_schema_length=None)
        delimiter = DELIMITERS.get(suffix, ",")
        return pl.read_csv(place, separator=delimiter, infer_schema=False, null_values=["", "NA"])
    except FileNotFoundError as error:
        raise DataError(f"cannot read {source}: no such file") from error
    except (OSError, pl.exceptions.PolarsError) as error:
        raise DataError(f"cannot read {source}: {str(error).splitlines()[0]}") from error
