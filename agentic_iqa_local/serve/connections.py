"""The connections of the service: one whose request does not come is closed."""

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

PATIENCE = 15.0  # seconds for a request's line and headers, and between two parts of a body nobody reads


class Connection(H11Protocol):
    """uvicorn has a time for idle connections between two requests only. Here a sender of slow headers is cut
    off too; bodies are the guard's."""

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._late = self.loop.call_later(PATIENCE, transport.close)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        in_hand = self.cycle is not None and not self.cycle.response_complete
        refused_unread = self.conn.their_state is h11.SEND_BODY
        if self._late and (in_hand or refused_unread):
            self._late.cancel()
            self._late = None
        if not in_hand and not self._late:
            self._late = self.loop.call_later(PATIENCE, self.transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._late:
            self._late.cancel()
        super().connection_lost(exc)
