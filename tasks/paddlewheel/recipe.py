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
from pydantic import Field, TypeAdapter
from pydantic.dataclasses import dataclass

from paddlewheel.recipe_data import STRICT, Data, Feature, Fraction, Name, Params, Positive


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
