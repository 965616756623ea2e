"""A file's bytes as UTF-8, whatever its declared encoding: strictly, and naming the line that is not in it."""

from __future__ import annotations

import codecs
from collections.abc import Iterator

from paddlewheel.data.readers import ReadJob, UnreadableFile
from paddlewheel.data.tables.compressed import read_pieces

BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def read_utf8(job: ReadJob, piece_bytes: int) -> Iterator[bytes]:
    """The file's content, decompressed, as UTF-8 without a byte order mark. A piece may end amid a character.

    Raises UnreadableFile as `read_pieces` does, and naming the line for bytes that are not of the source's encoding.
    """
    begin: bytes | None = b""
    for piece in _decoded(job, piece_bytes):
        if begin is None:
            yield piece
            continue
        begin += piece
        if len(begin) >= len(BYTE_ORDER_MARK):
            yield begin.removeprefix(BYTE_ORDER_MARK)
            begin = None
    if begin:
        yield begin


def _decoded(job: ReadJob, piece_bytes: int) -> Iterator[bytes]:
    codec, decoder = _decoder(job, "strict")
    is_utf8, read = codec.name == "utf-8", 0
    for piece in read_pieces(job, piece_bytes):
        held = len(decoder.getstate()[0])
        if is_utf8 and not held and piece.isascii():
            yield piece
        else:
            text = _decode(job, decoder, piece, read - held)
            yield piece if is_utf8 else text.encode()
        read += len(piece)
    _decode(job, decoder, None, read - len(decoder.getstate()[0]))


def _decoder(job: ReadJob, errors: str) -> tuple[codecs.CodecInfo, codecs.IncrementalDecoder]:
    encoding = job.source.encoding
    try:
        codec = codecs.lookup(encoding)
        return codec, codec.incrementaldecoder(errors)
    except (LookupError, TypeError) as error:
        raise UnreadableFile(
            f"{job.name}: {encoding!r} is no encoding of text that Python knows; use utf-8, latin-1, cp1252, utf-16 …"
        ) from error


def _decode(job: ReadJob, decoder: codecs.IncrementalDecoder, piece: bytes | None, at: int) -> str:
    """The text of a piece (None: the end), whose first byte not yet decoded is byte `at` of the content."""
    try:
        return decoder.decode(piece or b"", piece is None)
    except UnicodeError as error:
        at += error.start if isinstance(error, UnicodeDecodeError) else 0
        name = "UTF-8" if job.source.encoding.lower() in ("utf-8", "utf8") else job.source.encoding
        raise UnreadableFile(
            f"{job.name}: line {_line_at(job, at)} is not {name} text (byte {at}); export it as {name}, or give the "
            "source the file's encoding"
        ) from error


def _line_at(job: ReadJob, at: int) -> int:
    """The line of byte `at` of the content, found by reading it again: whoever reads a sound file counts nothing."""
    _, decoder = _decoder(job, "replace")
    line = 1
    for piece in read_pieces(job):
        line += decoder.decode(piece[:at]).count("\n")
        at -= len(piece)
        if at <= 0:
            break
    return line
