"""Ask the API whether a worker that does not answer can still exist, without blocking the run."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from tpuctl.remote.member import Member

_EVERY = timedelta(seconds=15)
LOOK_AGAIN = timedelta(seconds=0.25)


class Inquiry:
    """Asks about nodes, each in a thread: with the network down an answer takes minutes, and the run does not wait for it.

    `ask` returns why a node cannot be running any more, or None.
    """

    def __init__(self, ask: Callable[[Member], str | None]) -> None:
        self._ask = ask
        self._asked: dict[str, timedelta] = {}
        self._threads: dict[str, threading.Thread] = {}
        self._answers: dict[str, str | None] = {}

    @property
    def is_pending(self) -> bool:
        """Whether an answer may arrive at any moment."""
        return any(thread.is_alive() for thread in self._threads.values())

    def why_gone(self, member: Member, now: timedelta) -> str | None:
        """Return why the node cannot be running any more, None if that is not known; ask again every 15 seconds."""
        name = str(member.node.name)
        thread = self._threads.get(name)
        is_asking = thread is not None and thread.is_alive()
        if not is_asking and now - self._asked.get(name, -_EVERY) >= _EVERY:

            def ask() -> None:
                self._answers[name] = self._ask(member)

            self._asked[name] = now
            self._threads[name] = threading.Thread(target=ask, daemon=True)
            self._threads[name].start()
        return self._answers.get(name)
