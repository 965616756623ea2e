"""`paddlewheel`: every step and every question about a store from the command line, without Airflow.

Exit codes: 0 done (a refused challenger is a normal end), 2 usage or recipe, 3 data, 4 training job, 5 storage.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from paddlewheel.errors import PaddlewheelError, RecipeError
from paddlewheel.storage import Store, default_root, open_store

Command = Callable[[argparse.Namespace], int]
AddRecipe = Callable[[argparse.ArgumentParser], None]
LATER_COMMANDS = ("cluster",)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code and tells errors without a stack trace."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments and arguments[0] in LATER_COMMANDS:
        print(f"paddlewheel {arguments[0]}: not in this version", file=sys.stderr)
        return 2
    options = build_parser().parse_args(arguments)
    set_up_log(quiet=options.json, verbose=options.verbose)
    command: Command = options.command
    try:
        return command(options)
    except PaddlewheelError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    except KeyboardInterrupt:
        print("interrupted; run the same command again: finished steps are kept", file=sys.stderr)
        return 130


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--root", default=None, help="the store (default: PADDLEWHEEL_ROOT, else var/ of the project)")
    common.add_argument("--json", action="store_true", help="print the machine's form")
    common.add_argument("--verbose", action="store_true", help="say more of what happens")
    parser = argparse.ArgumentParser(
        prog="paddlewheel",
        description="Retrains PaddlePaddle models every night.",
        epilog=(__doc__ or "").split("\n\n")[1],
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def add(name: str, command: Command, text: str, **more: Any) -> argparse.ArgumentParser:
        added = commands.add_parser(name, parents=[common], help=text, description=text, **more)
        added.set_defaults(command=command)
        return added

    def add_recipe(to: argparse.ArgumentParser) -> None:
        to.add_argument("recipe", metavar="RECIPE", type=Path, help="a recipe's YAML file")
        to.add_argument(
            "--set", dest="overrides", metavar="path=value", nargs="+", action="extend", default=[],
            help="change a field of the recipe, as training.epochs=3",
        )  # fmt: skip

    demo = add("demo", _demo, "write the demo's landing files")
    demo.add_argument("name", choices=["flights", "ctr"], help="real flights, or synthetic clicks")
    demo.add_argument("landing", metavar="LANDING", help="a folder, or s3://[CONNECTION@]BUCKET/PREFIX")
    demo.add_argument("--days", type=int, help="ctr: how many (default 8)")
    demo.add_argument("--rows-per-day", type=int, help="ctr: default 50000")
    demo.add_argument("--seed", type=int, help="ctr: of rows and truth (default 0)")

    for name, command, text in (
        ("run", _run, "every step for one partition, without Airflow"),
        ("plan", _plan, "list the window of a partition and freeze its landing files"),
    ):
        whole = add(name, command, text)
        add_recipe(whole)
        whole.add_argument(
            "--partition", metavar="DAY", help="as 2013-11-01 (default: the newest day that the landing folder holds)"
        )
    for name, metavar, text in (
        ("ingest", "PLAN", "landing files into typed tables, rows that break the schema into refusal files"),
        ("validate", "INGEST", "hold what was ingested against the recipe's limits"),
        ("shard", "VALIDATED", "label and join the rows and give each its shard"),
        ("fit-features", "SHARDS", "fit the features on the training days"),
        ("preprocess", "FEATURES", "apply the features: fixed-width rows"),
        ("train", "PACKED", "train on this host and wait for the result"),
        ("evaluate", "RUN", "measure the holdout days, against the champion"),
        ("gate", "EVALUATION", "decide whether the challenger may be promoted"),
        ("promote", "VERDICT", "publish an accepted model and move the champion"),
        ("report", "PROMOTION", "write the run's card"),
    ):
        step = add(name, _step, f"{text}; prints the URI of its manifest")
        step.set_defaults(step=name)
        step.add_argument(
            "uris",
            metavar=metavar,
            nargs="+" if name in ("validate", "train") else 1,
            help="what the step before printed",
        )
        if name in ("ingest", "preprocess"):
            step.add_argument("--batch", type=int, default=None, help="only this batch (default: all)")
        if name == "gate":
            step.add_argument("--accept", action="store_true", help="accept it whatever the rules say, on the record")
            step.add_argument("--by", help="with --accept: who decides")
            step.add_argument("--reason", help="with --accept: why")

    runs = add("runs", _runs, "list runs, show one, or verify a run's files")
    runs.add_argument("action", choices=["list", "show", "verify", "rebuild"])
    runs.add_argument("key", nargs="?", help="the run's key, or its first digits")
    runs.add_argument("--partition", metavar="DAY", help="show, verify: the newest run of this partition")
    runs.add_argument("--recipe", metavar="NAME", help="with --partition: of this recipe")
    models = add("models", _models, "list models, show one, or roll its champion back")
    models.add_argument("action", choices=["list", "show", "rollback"])
    models.add_argument("name", nargs="?")
    models.add_argument(
        "--to", type=int, default=None, metavar="VERSION", help="rollback: this version, not the one before"
    )
    models.add_argument("--by", default=None, help="rollback: who does it")
    models.add_argument("--reason", default=None, help="rollback: why")
    recipes = add("recipe", _recipe, "check a recipe or show it with every default")
    recipes.add_argument("action", choices=["check", "show"])
    add_recipe(recipes)
    _add_data(commands, common, add_recipe)
    predict = add("predict", _predict, "score the rows of a file by a published model")
    predict.add_argument("model", metavar="NAME[@VERSION]", help="a model; without a version, its champion")
    predict.add_argument(
        "file", metavar="FILE", type=Path,
        help="CSV, TSV, JSON Lines (or .gz, .zst) or Parquet: the columns that the features read, joined as by shard",
    )  # fmt: skip
    predict.add_argument(
        "--output", required=True, type=Path, metavar="FILE",
        help="the same rows with a column `probability`: .parquet, .jsonl, .tsv or CSV by its name",
    )  # fmt: skip
    return parser


def _add_data(commands: Any, common: argparse.ArgumentParser, add_recipe: AddRecipe) -> None:
    """The actions of `paddlewheel data`."""
    actions = commands.add_parser("data", help="look at the data of a recipe").add_subparsers(
        metavar="ACTION", required=True
    )
    text = "the first rows of a source as the recipe types them, refusals with reasons, statistics; publishes nothing"
    preview = actions.add_parser("preview", parents=[common], help=text, description=text)
    preview.set_defaults(command=_preview)
    add_recipe(preview)
    preview.add_argument("--source", metavar="NAME", help="of the recipe (default: its rows)")
    preview.add_argument("--partition", metavar="DAY", help="default: the newest day that is there")
    preview.add_argument("--rows", type=_count, default=10, metavar="N", help="how many to show (default: 10)")
    text = "what a plan lists that an older one does not: files new, changed, gone"
    differ = actions.add_parser("diff", parents=[common], help=text, description=text)
    differ.set_defaults(command=_diff)
    differ.add_argument("plan", metavar="PLAN", help="what the step plan printed")
    differ.add_argument("older", metavar="OLDER", nargs="?", help="default: the plan of that recipe made last")


def _count(text: str) -> int:
    """A whole number from 1 on. Raises argparse.ArgumentTypeError."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 on")
    return int(text)


def set_up_log(*, quiet: bool, verbose: bool) -> None:
    """Steps log to standard error: plain lines of the project's own loggers, warnings of everybody else's."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("  %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("paddlewheel").setLevel(logging.DEBUG if verbose else logging.WARNING if quiet else logging.INFO)


def _store(options: argparse.Namespace) -> Store:
    if options.root == "":
        raise RecipeError("--root is empty; name a folder or s3://[CONNECTION@]BUCKET/PREFIX, or leave --root out")
    return open_store(options.root or default_root())


def _print(options: argparse.Namespace, tree: Any, lines: Sequence[str]) -> None:
    print(json.dumps(tree, indent=1, sort_keys=True) if options.json else "\n".join(lines))


def _demo(options: argparse.Namespace) -> int:
    from paddlewheel.data.demos.landing import write_demo

    sizes = {name: value for name in ("days", "rows_per_day", "seed") if (value := getattr(options, name)) is not None}
    if options.name == "flights" and sizes:
        raise RecipeError("demo flights has the days and rows that it has; --days, --rows-per-day, --seed are of ctr")
    told = write_demo(options.name, open_store(options.landing), **sizes)
    tree = {"landing": options.landing, **dataclasses.asdict(told)}
    _print(options, tree, [f"landing files are in {options.landing}"])
    return 0


def _load(options: argparse.Namespace) -> Any:
    from paddlewheel.recipe_check import load_recipe

    return load_recipe(options.recipe, options.overrides)


def _run(options: argparse.Namespace) -> int:
    from paddlewheel.cli.steps import run_night

    _print(options, *run_night(_load(options), _store(options), partition=options.partition, quiet=options.json))
    return 0


def _plan(options: argparse.Namespace) -> int:
    from paddlewheel.cli.steps import plan_day

    _print(options, *plan_day(_load(options), _store(options), partition=options.partition))
    return 0


def _step(options: argparse.Namespace) -> int:
    from paddlewheel.cli.steps import Override, make

    override = None
    if options.step == "gate" and options.accept:
        if not options.by or not options.reason:
            raise RecipeError("gate --accept needs --by and --reason: they stand in the verdict")
        override = Override(by=options.by, reason=options.reason)
    batch = getattr(options, "batch", None)
    made = make(options.step, options.uris, _store(options), batch=batch, override=override, quiet=options.json)
    _print(options, *made)
    return 0


def _diff(options: argparse.Namespace) -> int:
    from paddlewheel.cli.data import diff

    _print(options, *diff(_store(options), options.plan, options.older))
    return 0


def _runs(options: argparse.Namespace) -> int:
    from paddlewheel import runs

    if options.action == "rebuild":
        raise RecipeError("runs rebuild: not in this version")
    store = _store(options)
    unnamed = options.key is None and options.partition is None
    if options.action != "list" and unnamed and len(store.children("runs")) > 1:
        raise RecipeError(
            f"runs {options.action} needs a run's key, or --partition; `paddlewheel runs list` shows them"
        )
    if options.action == "list":
        found = runs.list_runs(store)
        _print(options, [run.to_json() for run in found], runs.lines_of(found) or [f"no runs in {store.root}"])
        return 0
    run = runs.find_run(store, options.key, partition=options.partition, recipe=options.recipe)
    if options.action == "verify":
        problems = runs.verify_run(store, run)
        lines = [f"{run.key}: {len(problems)} problems", *problems] if problems else [f"{run.key}: every file verified"]
        _print(options, {"run": run.key, "problems": problems}, lines)
        return 5 if problems else 0
    _print(options, run.to_json(), _describe(store, run))
    return 0


def _describe(store: Store, run: Any) -> list[str]:
    """The night's own lines where it was judged, else the table's line; then where its parts are."""
    from paddlewheel import runs
    from paddlewheel.card.page import summary_lines

    promotions = runs.newest_manifests(store, run.key, "promotions")
    if not promotions:
        return runs.lines_of([run])
    return summary_lines(store, store.uri(f"{promotions[-1].key}/manifest.json"))


def _models(options: argparse.Namespace) -> int:
    from paddlewheel.cli import models as cli_models

    store = _store(options)
    if options.action == "list":
        tree, lines = cli_models.overview(store)
    else:
        if options.name is None:
            raise RecipeError(f"models {options.action} needs the model's name; `paddlewheel models list` shows them")
        if options.action == "show":
            tree, lines = cli_models.show(store, options.name)
        else:
            if not options.by or not options.reason:
                raise RecipeError("models rollback needs --by and --reason: they stand in the model's history")
            tree, lines = cli_models.roll_back(store, options.name, options.to, by=options.by, reason=options.reason)
    _print(options, tree, lines)
    return 0


def _recipe(options: argparse.Namespace) -> int:
    import yaml

    from paddlewheel.recipe import dump

    recipe = _load(options)
    if options.action == "check":
        _print(options, {"digest": recipe.digest, "ok": True}, [f"{options.recipe}: fine, digest {recipe.digest}"])
    else:
        tree = dump(recipe)
        _print(options, tree, [yaml.safe_dump(tree, sort_keys=False, allow_unicode=True).rstrip()])
    return 0


def _preview(options: argparse.Namespace) -> int:
    from paddlewheel.cli.data import preview

    tree, lines = preview(
        _load(options), _store(options), source=options.source, partition=options.partition, rows=options.rows
    )
    _print(options, tree, lines)
    return 0


def _predict(options: argparse.Namespace) -> int:
    from paddlewheel.predict import predict_file

    name, _, version = options.model.partition("@")
    if version and not version.isdigit():
        raise RecipeError(f"{options.model}: a version is a number, as {name}@3")
    rows = predict_file(_store(options), name, int(version) if version else None, options.file, options.output)
    _print(options, {"rows": rows, "output": str(options.output)}, [f"{rows} rows scored into {options.output}"])
    return 0
