"""The data half of a recipe: sources, schemas, joins, drift, sharding and features, as frozen dataclasses."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

STRICT = ConfigDict(extra="forbid", str_strip_whitespace=True, allow_inf_nan=False, defer_build=True)
VERBATIM = ConfigDict(extra="forbid", allow_inf_nan=False, defer_build=True)  # a tab is a delimiter, not white space

Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=64)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[int, Field(ge=1)]
NotNegative = Annotated[float, Field(ge=0)]
Scalar = str | int | float | bool
Params = dict[str, Any]

ColumnType = Literal["string", "int64", "float64", "bool", "date", "timestamp", "binary"]
FeatureKind = Literal[
    "category",
    "hash",
    "cross",
    "standard",
    "log1p",
    "clip",
    "quantile",
    "clock",
    "cyclic",
    "hour",
    "weekday",
    "month",
    "year_day",
    "age",
    "multi",
    "words",
    "characters",
    "bytes",
]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Limit:
    """Two marks of one measure: beyond `fail` the night stops, beyond `warn` it is told if it is unusual too. None: no.

    Unusual: more than chance makes of so few rows, and more than twice what the training window's own days reach.
    """

    warn: NotNegative | None = None
    fail: NotNegative | None = None


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Drift:
    """How far a day may be from the training window before it, and the window from the champion's, by column.

    missing: difference of the shares of missing values. outside: share of values outside the reference's range; of
    dates and timestamps outside its range of distances from the day that they were delivered for.
    psi: population stability index, natural logarithm, over ten quantile bins or the most frequent values.
    divergence: Jensen-Shannon divergence in bits (0 to 1) over the same bins. new: share of rows whose category the
    reference does not have.
    """

    missing: Limit = Field(default_factory=lambda: Limit(warn=0.1))
    outside: Limit = Field(default_factory=lambda: Limit(warn=0.1))
    psi: Limit = Field(default_factory=lambda: Limit(warn=0.25))
    divergence: Limit = Field(default_factory=lambda: Limit(warn=0.2))
    new: Limit = Field(default_factory=lambda: Limit(warn=0.1))


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Column:
    """One column of a source file. `known` says whether its value exists when the prediction is asked for.

    `drift` replaces the recipe's limits for this column.
    """

    name: str
    type: ColumnType
    known: Literal["before", "after"] = "before"
    required: bool = True
    nullable: bool = False
    minimum: float | None = None
    maximum: float | None = None
    allowed: tuple[Scalar, ...] | None = None
    pattern: str | None = None
    unit: str = ""
    drift: Drift | None = None


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Sql:
    """A source that is a query. `connection`: the id of an Airflow connection, or a URL (postgresql://, sqlite:///).

    `{start}` and `{end}` in the query become bound parameters: the partition's first day and the day after it.
    `version`: a query with the same parameters whose single row changes when the rows do (default: the number of rows).
    """

    connection: str
    query: str
    version: str | None = None


@dataclass(frozen=True, kw_only=True, config=VERBATIM)
class Source:
    """Rows of one shape: files below the landing folder, or a query.

    path: relative to the landing folder; `{partition}` makes it one set of files a day, `*` and `?` (within a name) and
    `**` (over folders) make it many files. format: csv, tsv, jsonl, parquet, text, images, or package.module:name of a
    reader of the user's own, which gets `params`. `.gz` and `.zst` are decompressed. encoding, header, delimiter: of
    csv and tsv (text and jsonl take the encoding too). max_refused_fraction: of rows that break the schema;
    max_unreadable_fraction: of files that cannot be read at all, which go to quarantine.
    """

    name: Name
    columns: Annotated[tuple[Column, ...], Field(min_length=1)]
    path: str = ""
    sql: Sql | None = None
    key: tuple[str, ...] = ()
    format: str = "csv"
    params: Params = Field(default_factory=dict)
    encoding: str = "utf-8"
    header: bool = True
    delimiter: Annotated[str, Field(min_length=1, max_length=1)] | None = None
    max_refused_fraction: Fraction = 0.0
    max_unreadable_fraction: Fraction = 0.0
    null_values: tuple[str, ...] = ("", "NA")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Moment:
    """A point in time of a row: a timestamp column, truncated to the hour or not, plus a column of minutes."""

    column: str
    plus_minutes: str | None = None


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Join:
    """Columns of another source for each row: the row with the same keys, or the last such one up to a moment.

    Joined columns are named `<source>_<column>`. `keys` maps columns of the rows to columns of the source, which
    is held in memory: whole, or of an as-of join by day the days that the tolerance reaches.
    """

    source: Source
    kind: Literal["lookup", "asof"]
    keys: Annotated[dict[str, str], Field(min_length=1)]
    left_time: Moment | None = None
    right_time: Moment | None = None
    tolerance_hours: Annotated[float, Field(gt=0)] | None = None


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Label:
    """Binary label: 1 where `column` is true or above `above`. Rows where it is null leave: `without_label`."""

    column: str
    above: float = 0.0


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Window:
    """Days that a partition trains on and is judged by: the holdout is the last days up to and with the partition."""

    train_days: Positive
    holdout_days: Positive


SHARDINGS = ("content", "path", "size", "label")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Sharding:
    """Which shard of its day a row goes to: each row to exactly one.

    content: by the hash of its id. path: rows of one file together, the files dealt in turn. size: rows of one file
    together, the file of most samples first, so that the shards are about equal. label: by content within each label,
    so that every shard has the same share of it. Or package.module:name of a function of a frame (the sample's columns,
    sample_id, label and file, the path that it came from) and the number of shards -> a number for each sample, which
    must follow from that sample alone: the frame is some of the day's samples.
    """

    by: str = "content"
    shards_per_day: Annotated[int, Field(ge=1, le=256)] = 1


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Data:
    """Where rows come from and how they are cut. A relative `landing` lies below the root.

    landing: a folder or s3://[CONNECTION@]BUCKET/PREFIX. demo: what fills an empty landing folder when the recipe is
    run. max_batches: into how many mapped tasks ingest and preprocess are cut at the most. compression: of packed rows.
    """

    landing: str
    rows: Source
    label: Label
    window: Window
    joins: tuple[Join, ...] = ()
    drift: Drift = Field(default_factory=Drift)
    sharding: Sharding = Field(default_factory=Sharding)
    demo: Literal["flights", "ctr"] | None = None
    max_batches: Annotated[int, Field(ge=1, le=1024)] = 4
    compression: Literal["lz4", "zstd", "none"] = "lz4"


@dataclass(frozen=True, kw_only=True, config=VERBATIM)
class Feature:
    """One model input. `columns` are raw or joined columns; parameters that a kind does not take are refused.

    category: vocabulary with at least `min_count` sightings (and at most `max_size` entries), 0 = unknown or missing.
    hash: xxh3 into `buckets`. cross: hash of several columns together. standard, log1p: float, standardised on the
    training window, missing -> 0 with an indicator. clip: between `lower` and `upper` (or one of them), then as
    standard. quantile: bin number of `bins`. clock: minutes since midnight of an hhmm number, cyclic sine and cosine.
    cyclic: sine and cosine with `period`. hour, year_day: of a time in `timezone`, cyclic. weekday, month: of the same,
    as ids. age: first column (a year) minus the second, standardised. multi: up to `length` values between `separator`,
    ids of one vocabulary. words, characters: the first `length` n-grams (n from 1, or 3, to `ngram`) hashed into
    `buckets`. bytes: `length` UTF-8 bytes as ids, 0 after the end.
    """

    name: Name
    kind: FeatureKind
    columns: Annotated[tuple[str, ...], Field(min_length=1)]
    min_count: Positive | None = None
    max_size: Positive | None = None
    buckets: Annotated[int, Field(ge=2, lt=2**31)] | None = None
    bins: Annotated[int, Field(ge=2, le=4096)] | None = None
    period: Annotated[float, Field(gt=0)] | None = None
    timezone: str | None = None
    lower: float | None = None
    upper: float | None = None
    length: Annotated[int, Field(ge=1, le=65536)] | None = None
    separator: Annotated[str, Field(min_length=1)] | None = None
    ngram: Annotated[int, Field(ge=1, le=8)] | None = None
