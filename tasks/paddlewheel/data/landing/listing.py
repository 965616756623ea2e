"""What a landing folder holds for a source: one listing of its folder, matched against the source's path.

Rejected: one question a file (a HEAD each on S3), and `fnmatch`, whose `*` crosses folders.
"""

from __future__ import annotations

import datetime
import functools
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from paddlewheel.data.landing.groups import SourceFile
from paddlewheel.data.readers.sql_query import is_by_day
from paddlewheel.errors import DataError
from paddlewheel.recipe_data import Source
from paddlewheel.storage import Store, open_store, uri_to_path

PARTITION: Final = "{partition}"
DAY: Final = r"\d{4}-\d\d-\d\d"
WILD: Final = re.compile(r"\{partition\}|\*|\?")
# A wildcard never matches what writers leave beside their files: hidden and temporary ones, and markers.
NO_DATA: Final = (
    r"(?!\.|_(?:SUCCESS|temporary|metadata|common_metadata|delta_log|spark_metadata)(?:/|$)|_(?:committed|started)_"
    r"|[^/]*\.(?:crc|tmp|inprogress)(?:/|$)|[^/]*\._COPYING_(?:/|$))"
)
PLACE: Final = "\0"  # of a day, before it is known whether it is the first: no path has such a character
NAME: Final = rf"{NO_DATA}[^/]+"
TOKENS: Final = re.compile(r"\{partition\}|\*+|\?|[^*?{]+|\{")


@dataclass(frozen=True, kw_only=True)
class Listing:
    """A source's files by day, as the landing folder lists them; `single` for a source of one set of files."""

    days: dict[str, list[SourceFile]] = field(default_factory=dict)
    single: list[SourceFile] = field(default_factory=list)

    @property
    def held(self) -> list[str]:
        """The days for which there is a file, sorted."""
        return sorted(self.days)


def open_landing(store: Store, landing: str) -> Store:
    """The landing folder as a store of its own. A relative name lies below the store's root."""
    absolute = "://" in landing or landing.startswith(("/", "~"))
    return open_store(landing if absolute else store.uri(landing))


def list_sources(landing: Store, sources: Iterable[Source]) -> dict[str, Listing]:
    """The listing of each source of files; sources below one folder share one walk of it.

    Raises DataError where the landing folder is a file, or a folder lies where a source's only file is meant.
    """
    if landing.root.startswith("file:") and uri_to_path(landing.root).is_file():
        raise DataError(f"the landing folder {landing.root} is a file; name a folder in data.landing")
    found = {source.name: Listing() for source in sources}
    folders: dict[str, list[Source]] = defaultdict(list)
    for source in sources:
        if WILD.search(source.path):
            folders[folder_of(source.path)].append(source)
        elif (stat := landing.stat(source.path)) is not None and not is_folder(landing, source.path):
            found[source.name].single.append(SourceFile(stat.key, stat.bytes, stat.version))
    for folder, some in folders.items():
        patterns = [(found[source.name], pattern_of(source.path).fullmatch, by_day(source)) for source in some]
        for stat in landing.list(folder):
            for listing, match_whole, daily in patterns:
                if (match := match_whole(stat.key)) is None:
                    continue
                file = SourceFile(stat.key, stat.bytes, stat.version)
                if not daily:
                    listing.single.append(file)
                elif (files := listing.days.get(day := match["day"])) is not None:
                    files.append(file)
                elif _is_day(day):
                    listing.days[day] = [file]
    return found


def by_day(source: Source) -> bool:
    """Whether a source has rows of its own for each day."""
    if source.sql is not None:
        return is_by_day(source.sql)
    return PARTITION in source.path


def folder_of(path: str) -> str:
    """The folder that holds whatever a path with wildcards can name: all before its first wild part."""
    start = WILD.search(path)
    return path[: start.start() if start else len(path)].rpartition("/")[0]


@functools.cache
def pattern_of(path: str) -> re.Pattern[str]:
    """A path with `{partition}`, `*`, `?` and `**` as an expression of whole keys, the day in the group `day`."""
    parts = path.split("/")
    patterns = []
    for index, part in enumerate(parts):
        last = index == len(parts) - 1
        if part == "**":
            patterns.append(f"(?:{NAME}/)*" + (NAME if last else ""))
        else:
            patterns.append(_name_pattern(part) + ("" if last else "/"))
    text = "".join(patterns)
    return re.compile(text.replace(PLACE, f"(?P<day>{DAY})", 1).replace(PLACE, "(?P=day)"), re.DOTALL)


def is_folder(landing: Store, path: str) -> bool:
    """Whether a folder lies where a file is meant."""
    folder, _, name = path.rpartition("/")
    return name in landing.children(folder)


def _name_pattern(part: str) -> str:
    """One name of a path. Only what begins with a wildcard is kept from hidden files: a literal beginning is meant."""
    names = {PARTITION: PLACE, "?": "[^/]"}
    pieces = [
        names.get(token) or ("[^/]*" if token.startswith("*") else re.escape(token)) for token in TOKENS.findall(part)
    ]
    return (NO_DATA if part.startswith(("*", "?")) else "") + "".join(pieces)


@functools.cache
def _is_day(text: str) -> bool:
    try:
        datetime.date.fromisoformat(text)
    except ValueError:
        return False
    return True
