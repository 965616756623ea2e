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
    """A Paddle optimizer by name. `learning_rate` is the peak of the schedule.

    `base_batch`: the global batch that `learning_rate` was tuned at; the peak is then scaled by global_batch /
    base_batch (the linear scaling rule of Goyal and others 2017). `params`: further arguments of Paddle's class.
    """

    name: Literal["adam", "adamw", "sgd", "momentum", "adagrad", "rmsprop", "adamax", "nadam", "radam", "lamb"] = (
        "adamw"
    )
    learning_rate: Annotated[float, Field(gt=0)] = 1e-3
    base_batch: Positive | None = None
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    clip_norm: Annotated[float, Field(gt=0)] | None = None
    params: Params = Field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Schedule:
    """Learning rate by step: linear warm-up from 0 over `warmup_steps`, then by name down to `floor`.

    `milestones`: of `multistep`, shares of the training (0.5: half of the steps done) after each of which the rate is
    multiplied by `gamma`; `power`: of `polynomial`.
    """

    name: Literal["constant", "cosine", "linear", "polynomial", "exponential", "multistep", "inverse_sqrt"] = "constant"
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    floor: Annotated[float, Field(ge=0)] = 0.0
    gamma: Annotated[float, Field(gt=0, le=1)] = 0.1
    power: Annotated[float, Field(gt=0)] = 1.0
    milestones: tuple[Fraction, ...] = ()


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Split:
    """Parameters whose names match `layers` (a shell pattern, `blocks.*.up`) are split over the tensor ranks.

    column: the outputs of a Linear; row: its inputs; vocabulary: the rows of an Embedding, or the classes of the last
    Linear with a cross-entropy over them.
    """

    layers: str
    by: Literal["column", "row", "vocabulary"]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Parallel:
    """How a model is laid over ranks: tensor * pipeline * data = all ranks.

    `plan` is the model's own where it is empty. `stages`: names of the first layer of each stage but the first; empty:
    balanced by the measured cost of each layer. `shares`: rows of a global batch by data rank, as weights; `measured`
    takes them from the first steps' speeds. `zero_stage` counts under strategy zero alone.
    """

    tensor: Positive = 1
    pipeline: Positive = 1
    plan: tuple[Split, ...] = ()
    schedule: Literal["1f1b", "gpipe"] = "1f1b"
    stages: tuple[str, ...] = ()
    zero_stage: Literal[1, 2, 3] = 1
    shares: tuple[Annotated[float, Field(gt=0)], ...] | Literal["equal", "measured"] = "equal"


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Exchange:
    """Settings of `training.sync`. topk sends the largest `ratio` of each gradient and keeps the rest for later.

    local_sgd averages the parameters every `steps` steps; with `outer_momentum` the mean change is a gradient for an
    outer Nesterov step of `outer_learning_rate` (DiLoCo, Douillard and others 2023). `bucket_mb`: of dense and bf16
    where the device overlaps the exchange with the backward pass.
    """

    ratio: Annotated[float, Field(gt=0, le=1)] = 0.01
    steps: Positive = 8
    outer_momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    outer_learning_rate: Annotated[float, Field(gt=0)] = 1.0
    bucket_mb: Positive = 25


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Guard:
    """What happens to a step whose loss or gradients are not finite, or whose gradients' norm is out of line.

    Such a step's update is left out and counted. With one more than `max_skips` of them in a row the state goes back to
    the last commit, and those batches are passed over; after `max_rollbacks` the training fails, the batch named.
    `norm_factor`: times the median norm of the last hundred steps; null looks for numbers that are not finite alone.
    """

    max_skips: Annotated[int, Field(ge=0)] = 3
    max_rollbacks: Annotated[int, Field(ge=0)] = 1
    norm_factor: Annotated[float, Field(gt=1)] | None = None


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Validation:
    """Training rows kept aside (by a hash of their ids) and measured after every `every_epochs` epochs.

    With `patience`, training ends after that many measurements without a better `metric`; the best commit is then the
    result. `fraction` 0: none.
    """

    fraction: Annotated[float, Field(ge=0, lt=1)] = 0.0
    every_epochs: Positive = 1
    metric: Literal["log_loss", "auc", "loss"] = "log_loss"
    patience: Positive | None = None


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Training:
    """How the network is fitted. `global_batch` is over all ranks; a step is one global batch.

    `micro_batch`: at most so many rows at once on a rank; gradients of a rank's slice are added up over its
    micro-batches. `recompute`: names of layers (shell patterns) whose activations are computed again in the backward
    pass. `writers`: visualdl, mlflow.
    """

    epochs: Positive
    global_batch: Positive
    micro_batch: Positive | None = None
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    strategy: str = "data_parallel"
    parallel: Parallel = Field(default_factory=Parallel)
    sync: str = "dense"
    exchange: Exchange = Field(default_factory=Exchange)
    precision: Literal["float32", "bf16", "fp16"] = "float32"
    recompute: tuple[str, ...] = ()
    to_static: bool = False
    fused: bool = False
    optimizer: Optimizer = Field(default_factory=Optimizer)
    schedule: Schedule = Field(default_factory=Schedule)
    average_decay: Annotated[float, Field(ge=0, lt=1)] = 0.0
    guard: Guard = Field(default_factory=Guard)
    validation: Validation = Field(default_factory=Validation)
    checkpoint_every_steps: Positive | None = 200
    checkpoint_every_seconds: Positive | None = None
    keep_checkpoints: Positive = 3
    keep_best: bool = True
    keep_every_hours: Annotated[float, Field(gt=0)] | None = None
    loss: str | None = None
    handlers: tuple[str, ...] = ()
    writers: tuple[Literal["visualdl", "mlflow"], ...] = ()


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Evaluation:
    """What the holdout is measured by: bootstrap intervals over rows, whole and by slice.

    `metrics`: further ones, `package.module:name` of (labels, probabilities) -> number, told without intervals.
    """

    slices: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
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
