"""The recipe: what to train, on what, and how, as frozen dataclasses read from one YAML file.

Pydantic checks types and limits and reports every fault of a file at once; `recipe_check` adds what one field says
about another. Rejected: a free-form dictionary read where it is used, which finds a typing error after an hour.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from typing import Annotated, Any, Literal

import xxhash
from pydantic import ConfigDict, Field, TypeAdapter
from pydantic.dataclasses import dataclass

STRICT = ConfigDict(extra="forbid", str_strip_whitespace=True, allow_inf_nan=False, defer_build=True)

Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=64)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[int, Field(ge=1)]
Scalar = str | int | float | bool
Params = dict[str, Any]

ColumnType = Literal["string", "int64", "float64", "bool", "date", "timestamp"]
FeatureKind = Literal[
    "category", "hash", "cross", "standard", "log1p", "quantile", "clock", "cyclic", "weekday", "month", "age"
]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Column:
    """One column of a source file. `known` says whether its value exists when the prediction is asked for."""

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


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Source:
    """Files of one shape below the landing folder; `{partition}` in the path makes it one file a day."""

    name: Name
    path: str
    columns: Annotated[tuple[Column, ...], Field(min_length=1)]
    key: tuple[str, ...] = ()
    format: Literal["csv"] = "csv"
    max_refused_fraction: Fraction = 0.0
    null_values: tuple[str, ...] = ("", "NA")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Moment:
    """A point in time of a row: a timestamp column, truncated to the hour or not, plus a column of minutes."""

    column: str
    plus_minutes: str | None = None


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Join:
    """Columns of another source for each row: the row with the same keys, or the last such one up to a moment.

    Joined columns are named `<source>_<column>`. `keys` maps columns of the rows to columns of the source.
    """

    source: Source
    kind: Literal["lookup", "asof"]
    keys: Annotated[dict[str, str], Field(min_length=1)]
    left_time: Moment | None = None
    right_time: Moment | None = None
    tolerance_hours: Annotated[float, Field(gt=0)] | None = None


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Label:
    """Binary label: 1 where `column` is above `above`. Rows where it is null leave, counted as `without_label`."""

    column: str
    above: float


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Window:
    """Days that a partition trains on and is judged by: the holdout is the last days up to and with the partition."""

    train_days: Positive
    holdout_days: Positive


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Data:
    """Where rows come from and how they are cut. A relative `landing` lies below the root."""

    landing: str
    rows: Source
    label: Label
    window: Window
    joins: tuple[Join, ...] = ()
    shards_per_day: Annotated[int, Field(ge=1, le=256)] = 1
    max_batches: Annotated[int, Field(ge=1, le=1024)] = 4


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Feature:
    """One model input. `columns` are raw or joined columns; parameters that a kind does not take are refused.

    category: vocabulary with at least `min_count` sightings, 0 = unknown or missing. hash: xxh3 into `buckets`.
    cross: hash of several columns together. standard, log1p: float, standardised on the training window, missing -> 0
    with an indicator. quantile: bin number of `bins`. clock: minutes since midnight of an hhmm number, cyclic sine and
    cosine. cyclic: sine and cosine with `period`. weekday, month: of a timestamp in `timezone`. age: first column
    (a year) minus the second, standardised.
    """

    name: Name
    kind: FeatureKind
    columns: Annotated[tuple[str, ...], Field(min_length=1)]
    min_count: Positive | None = None
    buckets: Annotated[int, Field(ge=2, lt=2**31)] | None = None
    bins: Annotated[int, Field(ge=2, le=4096)] | None = None
    period: Annotated[float, Field(gt=0)] | None = None
    timezone: str | None = None


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Model:
    """A network by name (or `package.module:name`) and its parameters."""

    name: str
    params: Params = Field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Optimizer:
    """A Paddle optimizer by name. `learning_rate` is the peak of the schedule."""

    name: Literal["adam", "adamw", "sgd", "momentum", "adagrad"] = "adamw"
    learning_rate: Annotated[float, Field(gt=0)] = 1e-3
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    clip_norm: Annotated[float, Field(gt=0)] | None = None


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Schedule:
    """Learning rate by step: linear warm-up from 0 over `warmup_steps`, then constant or cosine down to `floor`."""

    name: Literal["constant", "cosine"] = "constant"
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    floor: Annotated[float, Field(ge=0)] = 0.0


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Training:
    """How the network is fitted. `global_batch` is over all ranks; a step is one global batch."""

    epochs: Positive
    global_batch: Positive
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    strategy: str = "data_parallel"
    sync: str = "dense"
    precision: Literal["float32", "bf16", "fp16"] = "float32"
    optimizer: Optimizer = Field(default_factory=Optimizer)
    schedule: Schedule = Field(default_factory=Schedule)
    average_decay: Annotated[float, Field(ge=0, lt=1)] = 0.0
    checkpoint_every_steps: Positive = 200
    keep_checkpoints: Positive = 3
    handlers: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Evaluation:
    """What the holdout is measured by: bootstrap intervals over rows, whole and by slice."""

    slices: tuple[str, ...] = ()
    resamples: Annotated[int, Field(ge=100, le=100_000)] = 1000
    confidence: Annotated[float, Field(gt=0.5, lt=1)] = 0.95
    min_slice_rows: Positive = 50


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Gate:
    """What a challenger must show. `max_loss` of a metric: by how much it may be worse than the champion's.

    `min_auc` and `max_log_loss` are floors for every challenger; a first model, without a champion, has them alone.
    `max_slice_loss` holds for the AUC of each slice that has enough rows, and only where the paired interval excludes a
    smaller loss.
    """

    metric: Literal["auc", "log_loss"] = "auc"
    max_loss: Annotated[float, Field(ge=0)] = 0.0
    min_auc: Fraction = 0.5
    max_log_loss: Annotated[float, Field(gt=0)] | None = None
    max_slice_loss: Annotated[float, Field(ge=0)] | None = None


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Resources:
    """Where a training runs. Not part of a run's key: the same work at another size is the same run."""

    launcher: str = "local"
    connection: str | None = None
    device: Literal["cpu", "gpu"] = "cpu"
    nodes: Positive = 1
    ranks_per_node: Positive = 1
    threads_per_rank: Positive = 1
    max_restarts: Annotated[int, Field(ge=0)] = 3
    admission_seconds: Positive = 3600
    rendezvous_seconds: Positive = 120
    first_step_seconds: Positive = 300
    step_stall_factor: Annotated[float, Field(gt=1)] = 20.0
    step_stall_seconds: Positive = 60
    shutdown_seconds: Positive = 30
    deadline_seconds: Positive = 6 * 3600


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Recipe:
    """A user's whole wish. Its digest names the work."""

    name: Name
    title: str
    data: Data
    features: Annotated[tuple[Feature, ...], Field(min_length=1)]
    model: Model
    training: Training
    version: Literal[1] = 1
    description: str = ""
    evaluation: Evaluation = Field(default_factory=Evaluation)
    gate: Gate = Field(default_factory=Gate)
    resources: Resources = Field(default_factory=Resources)

    @property
    def digest(self) -> str:
        """xxh3-128 of the canonical JSON, hexadecimal."""
        return xxhash.xxh3_128_hexdigest(dump_json(self))


@functools.cache
def adapter() -> TypeAdapter[Recipe]:
    """The parser of recipes; built at the first use, since building costs a tenth of a second."""
    return TypeAdapter(Recipe)


def dump(part: Any) -> Any:
    """Plain JSON values of a recipe or of one of its sections, defaults included."""
    return json.loads(json.dumps(dataclasses.asdict(part)))


def dump_json(recipe: Recipe) -> bytes:
    """Canonical JSON of a whole recipe."""
    return json.dumps(dataclasses.asdict(recipe), sort_keys=True, separators=(",", ":")).encode()
