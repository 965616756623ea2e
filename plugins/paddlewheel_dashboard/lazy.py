"""The dashboard as Airflow mounts it: built at the first request.

Airflow imports plugins in every process, scheduler and tasks too; only the API server ever asks for a page, and
building the application costs half a second of imports.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]


class LazyApp:
    """An ASGI application that stands for `paddlewheel_dashboard.app`."""

    @functools.cached_property
    def app(self) -> Any:
        """The application itself, with a login before every route."""
        from paddlewheel_dashboard.app import build_app

        return build_app()

    async def __call__(
        self, scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
    ) -> None:
        """Hand a request on."""
        await self.app(scope, receive, send)
