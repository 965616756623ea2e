"""A file's decompressed bytes piece by piece: `.gz` of any number of members, `.zst` of any number of frames."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from paddlewheel.data.readers import UnreadableFile

READ_BYTES: Final = 256 << 10
PIECE_BYTES: Final = 1 << 20


def open_pieces(name: str, path: Path) -> Iterator[bytes]:
    """The bytes, decompressed by what `name` ends with, in pieces of about PIECE_BYTES; none is empty.

    Raises UnreadableFile for a file that is empty, cut off, or not what its name says.
    """
    if not path.stat().st_size:
        raise UnreadableFile(f"{name}: the file is empty (0 bytes); deliver it again")
    suffix = Path(name).suffix
    if suffix == ".gz":
        yield from _inflate(name, path, "gzip", _Gzip)
    elif suffix == ".zst":
        yield from _inflate(name, path, "Zstandard", _Zstandard)
    else:
        with path.open("rb") as file:
            while piece := file.read(PIECE_BYTES):
                yield piece


def _inflate(name: str, path: Path, kind: str, new: Callable[[], Any]) -> Iterator[bytes]:
    decoder, size, begun = new(), 0, False
    with path.open("rb") as file:
        while raw := file.read(READ_BYTES):
            size += len(raw)
            while raw:
                if decoder.eof:
                    if kind == "gzip" and not raw.strip(b"\0"):  # padding, as gzip itself bears it
                        break
                    decoder, begun = new(), False
                try:
                    piece, raw = decoder.step(raw)
                except Exception as error:
                    raise UnreadableFile(f"{name}: not a sound {kind} file ({error}); deliver it again") from error
                begun = True
                if piece:
                    yield piece
    if begun and not decoder.eof:
        raise UnreadableFile(
            f"{name}: the {kind} file is cut off after {size} bytes; it was not delivered whole: deliver it again"
        )


class _Gzip:
    def __init__(self) -> None:
        from isal import isal_zlib

        self._object = isal_zlib.decompressobj(wbits=31)

    @property
    def eof(self) -> bool:
        return bool(self._object.eof)

    def step(self, raw: bytes) -> tuple[bytes, bytes]:
        """What comes out, and what is left of `raw`."""
        piece = self._object.decompress(raw, PIECE_BYTES)
        return piece, self._object.unused_data if self._object.eof else self._object.unconsumed_tail


class _Zstandard:
    def __init__(self) -> None:
        import zstandard

        self._object = zstandard.ZstdDecompressor().decompressobj()
        self.eof = False

    def step(self, raw: bytes) -> tuple[bytes, bytes]:
        """What comes out, and what is left of `raw`."""
        piece = self._object.decompress(raw[: READ_BYTES // 16])
        self.eof = self._object.eof
        return piece, self._object.unused_data + raw[READ_BYTES // 16 :]
