"""Files of raw rows scored by a published model: every format in and out, and what is told where it cannot be."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import zstandard

from paddlewheel.champions import Change, move, now
from paddlewheel.data.features import fit
from paddlewheel.errors import DataError, RecipeError
from paddlewheel.export import FEATURES, NETWORK, SIGNATURE, WEIGHTS, load_bundle, save_network
from paddlewheel.manifest import Manifest, publish_file, publish_manifest
from paddlewheel.predict import predict_file
from paddlewheel.recipe import Recipe
from paddlewheel.recipe_check import load_recipe
from paddlewheel.signature import describe_signature
from paddlewheel.storage.local import LocalStore

from .conftest import RECIPE
from .test_export import build_network

BIG = 2**53 + 1
ROWS = pl.DataFrame(
    {
        "carrier": ["UA", "AA", None, 'ö,\t"x"', "UA"],
        "number": [BIG, 2**53, None, 7, BIG],
        "leaves": [
            "2013-11-03T05:30:00Z",
            "2013-11-03T06:30:00Z",
            None,
            "1969-12-31T23:59:59Z",
            "2013-07-01T00:00:00Z",
        ],
        "weather_wind": [1.5, None, -0.0, 1e-300, 20.0],
    }
)


def recipe() -> Recipe:
    """The recipe of this folder with an as-of join, and a feature that tells 2**53 from the number after it."""
    tree = json.loads(json.dumps(RECIPE))
    tree["data"]["rows"]["columns"] += [
        {"name": "number", "type": "int64", "nullable": True},
        {"name": "leaves", "type": "timestamp", "nullable": True},
        {"name": "airport", "type": "string"},
    ]
    columns = [{"name": "station", "type": "string"}, {"name": "at", "type": "timestamp"}]
    columns += [{"name": "wind", "type": "float64"}]
    source = {"name": "weather", "path": "weather/{partition}.csv", "columns": columns}
    times = {"left_time": {"column": "leaves"}, "right_time": {"column": "at"}}
    tree["data"]["joins"] = [{"kind": "asof", "keys": {"airport": "station"}, **times, "source": source}]
    tree["features"] = [
        {"name": "carrier", "kind": "category", "columns": ["carrier"]},
        {"name": "number", "kind": "category", "columns": ["number"]},
        {"name": "hour", "kind": "hour", "columns": ["leaves"], "timezone": "America/New_York"},
        {"name": "wind", "kind": "standard", "columns": ["weather_wind"]},
    ]
    return load_recipe(tree)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> LocalStore:
    """A store whose model `late` has one version, in service."""
    store, wanted = LocalStore(tmp_path_factory.mktemp("models")), recipe()
    typed = ROWS.with_columns(pl.col("leaves").str.to_datetime("%Y-%m-%dT%H:%M:%S%#z", time_unit="us"))
    features = fit(typed, wanted.features)
    with store.staging() as staging:
        network = build_network(features.id_sizes, len(features.dense_names))
        save_network(network, staging, num_ids=len(features.id_sizes), num_dense=len(features.dense_names))
        (staging / FEATURES).write_bytes(features.to_json())
        (staging / SIGNATURE).write_text(json.dumps(describe_signature(wanted, features)))
        folder = "models/late/versions/1"
        names = (NETWORK, WEIGHTS, FEATURES, SIGNATURE)
        files = tuple(publish_file(store, f"{folder}/{name}", staging / name) for name in names)
    told = ("run", "partition", "evaluation", "verdict", "data")
    facts = {**dict.fromkeys(told, "x"), "metrics": {}}
    publish_manifest(store, Manifest(kind="model", name="late", key=folder, files=files, facts=facts))
    change = Change(version=1, run="r", partition="2013-11-01", action="promote", by="test", reason="", at=now())
    move(store, "late", None, change)
    return store


def write(frame: pl.DataFrame, path: Path) -> Path:
    """A file in the format of its name."""
    plain = path.with_suffix("") if path.suffix in (".gz", ".zst") else path
    if plain.suffix == ".parquet":
        frame.write_parquet(plain)
    elif plain.suffix == ".jsonl":
        frame.write_ndjson(plain)
    else:
        frame.write_csv(plain, separator="\t" if plain.suffix == ".tsv" else ",")
    compress = {".gz": gzip.compress, ".zst": zstandard.compress}.get(path.suffix)
    if compress:
        path.write_bytes(compress(plain.read_bytes()))
    return path


@pytest.mark.parametrize("name", ["r.parquet", "r.csv", "r.csv.zst", "r.tsv", "r.tsv.gz", "r.jsonl", "r.jsonl.gz"])
def test_rows_have_the_same_probability_whatever_file_they_come_in(
    store: LocalStore, tmp_path: Path, name: str
) -> None:
    expected = load_bundle(store, "models/late/versions/1/manifest.json").predict(ROWS)
    assert predict_file(store, "late", None, write(ROWS, tmp_path / name), tmp_path / "out.parquet") == 5
    scored = pl.read_parquet(tmp_path / "out.parquet")
    assert scored["probability"].to_list() == expected.tolist()
    assert expected[0] != expected[1]
    assert scored["carrier"].to_list() == ROWS["carrier"].to_list()


@pytest.mark.parametrize("name", ["out.csv", "out.tsv", "out.jsonl"])
def test_rows_are_written_in_the_format_of_the_name(store: LocalStore, tmp_path: Path, name: str) -> None:
    source = write(ROWS, tmp_path / "r.parquet")
    predict_file(store, "late", 1, source, tmp_path / name)
    text = (tmp_path / name).read_text()
    if name.endswith("jsonl"):
        first = json.loads(text.splitlines()[0])
        assert (first["number"], 0 < first["probability"] < 1) == (BIG, True)
    else:
        delimiter = "\t" if name.endswith("tsv") else ","
        assert text.splitlines()[0].split(delimiter) == [*ROWS.columns, "probability"]
        assert text.splitlines()[1].split(delimiter)[:2] == ["UA", str(BIG)]


def test_error_names_the_source_of_a_joined_column_when_rows_were_not_joined(store: LocalStore, tmp_path: Path) -> None:
    source = write(ROWS.drop("weather_wind", "carrier"), tmp_path / "r.csv")
    with pytest.raises(DataError) as told:
        predict_file(store, "late", None, source, tmp_path / "out.csv")
    assert str(told.value) == (
        "the rows do not fit the model's features: column 'carrier' (string) is missing; column 'weather_wind' "
        "(float64) is missing. Join to the rows first, as the shards have it: weather_wind (wind) of the source "
        "'weather', the last row up to the moment of airport = station"
    )
    assert not (tmp_path / "out.csv").exists()


def test_error_names_row_and_value_when_a_number_is_none(store: LocalStore, tmp_path: Path) -> None:
    source = tmp_path / "r.tsv"
    source.write_text("carrier\tnumber\tleaves\tweather_wind\nUA\t1\t2013-11-03\tstrong\n")
    with pytest.raises(DataError, match=r"'leaves', row 1: '2013-11-03' is not .*'weather_wind', row 1: 'strong' is"):
        predict_file(store, "late", None, source, tmp_path / "out.csv")


@pytest.mark.parametrize(
    ("content", "name"), [(b'{"a": ', "r.jsonl"), (b"PAR1", "r.parquet"), (b"\x1f\x8bxx", "r.csv.gz"), (None, "r.csv")]
)
def test_error_names_the_file_when_it_cannot_be_read(
    store: LocalStore, tmp_path: Path, content: bytes | None, name: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=f"cannot read {tmp_path / name}: "):
        predict_file(store, "late", None, tmp_path / name, tmp_path / "out.csv")


def test_error_says_how_to_name_the_output_and_which_versions_there_are(store: LocalStore, tmp_path: Path) -> None:
    source = write(ROWS, tmp_path / "r.parquet")
    with pytest.raises(DataError, match=r"name it \.parquet, \.jsonl, \.tsv or \.csv, and compress it afterwards"):
        predict_file(store, "late", None, source, tmp_path / "out.csv.gz")
    with pytest.raises(RecipeError, match="late has no version 2; there are 1"):
        predict_file(store, "late", 2, source, tmp_path / "out.csv")
    with pytest.raises(RecipeError, match="no model 'early'"):
        predict_file(store, "early", None, source, tmp_path / "out.csv")


def test_probabilities_are_numbers_of_every_row(store: LocalStore, tmp_path: Path) -> None:
    many = pl.concat([ROWS] * 2000)
    assert predict_file(store, "late", None, write(many, tmp_path / "r.parquet"), tmp_path / "o.parquet") == 10_000
    found = pl.read_parquet(tmp_path / "o.parquet")["probability"].to_numpy()
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found.reshape(2000, 5), np.tile(found[:5], (2000, 1)), atol=1e-7, rtol=0)
