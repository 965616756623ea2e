"""A TCP proxy in front of a server that cuts connections in the middle of a body, or answers in the server's stead.

Each connection carries one request, since the S3 server of the tests closes after every answer.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

CHUNK_BYTES = 1 << 14


@dataclass(kw_only=True)
class Cut:
    """Close both sides once so many bytes went `up` (requests) or `down` (answers), `times` times.

    `only` are the words that a request must begin with to count (`PUT /bucket/key`).
    """

    way: str
    after_bytes: int
    times: int = 1
    only: bytes = b""


@dataclass(kw_only=True)
class Refuse:
    """Answer `times` requests that begin with `only` by this status and S3 error, in the server's stead.

    `words` are its message (empty: the code).
    """

    status: str
    code: str
    words: str = ""
    times: int = 1
    only: bytes = b""

    @property
    def answer(self) -> bytes:
        """The whole HTTP answer."""
        body = f"<Error><Code>{self.code}</Code><Message>{self.words or self.code}</Message></Error>".encode()
        head = f"HTTP/1.1 {self.status}\r\nContent-Type: application/xml\r\nContent-Length: {len(body)}\r\n"
        return head.encode() + b"Connection: close\r\n\r\n" + body


@dataclass(kw_only=True)
class Proxy:
    """Forwards to `target_port`. `requests` are the first lines of all that came."""

    target_port: int
    cut: Cut | None = None
    refuse: Refuse | None = None
    requests: list[str] = field(default_factory=list)
    port: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def endpoint_url(self) -> str:
        """Where clients find it."""
        return f"http://127.0.0.1:{self.port}"

    def serve(self, listener: socket.socket) -> None:
        """Until the listener is closed."""
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                threading.Thread(target=self._forward, args=(client,), daemon=True).start()

    def _forward(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), client, socket.create_connection(("127.0.0.1", self.target_port)) as server:
            first = client.recv(CHUNK_BYTES)
            self.requests.append(first.split(b"\r\n")[0].decode(errors="replace"))
            if self._takes(self.refuse, first):
                client.settimeout(0.2)  # the rest of the request, so that the answer is not lost in a reset
                with contextlib.suppress(TimeoutError):
                    while client.recv(CHUNK_BYTES):
                        pass
                client.sendall(self.refuse.answer)
                return
            cut = self.cut if self._takes(self.cut, first) else None
            back = threading.Thread(target=_pump, args=(server, client, cut if cut and cut.way == "down" else None))
            back.start()
            _pump(client, server, cut if cut and cut.way == "up" else None, first)
            back.join()

    def _takes(self, fault: Cut | Refuse | None, first: bytes) -> bool:
        with self._lock:
            if fault is None or fault.times == 0 or not first.startswith(fault.only):
                return False
            fault.times -= 1
            return True


def _pump(source: socket.socket, sink: socket.socket, cut: Cut | None, chunk: bytes = b"") -> None:
    """From one side to the other, until the source ends or it is cut."""
    passed = 0
    with contextlib.suppress(OSError):
        while chunk := chunk or source.recv(CHUNK_BYTES):
            if cut is not None and passed + len(chunk) > cut.after_bytes:
                sink.sendall(chunk[: cut.after_bytes - passed])
                break
            sink.sendall(chunk)
            passed += len(chunk)
            chunk = b""
        else:
            sink.shutdown(socket.SHUT_WR)
            return
    for one in (source, sink):
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def proxy_to(port: int, cut: Cut | None = None) -> Iterator[Proxy]:
    """A proxy on a port of its own, gone with the block."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        proxy = Proxy(target_port=port, cut=cut, port=listener.getsockname()[1])
        threading.Thread(target=proxy.serve, args=(listener,), daemon=True).start()
        yield proxy
        listener.shutdown(socket.SHUT_RDWR)
