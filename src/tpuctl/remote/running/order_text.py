"""A request in the form that the program on a worker takes: a Python literal."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tpuctl.remote.running.values import Order


def order_text(order: Order, worker: int, *, offsets: tuple[int, int], must_exist: bool) -> str:
    """Return the literal. The worker sends output from `offsets` on; with `must_exist` it does not start the command."""
    return repr(
        {
            "name": f"{order.job}.{worker}",
            "token": order.token.encode(),
            "line": os.fsencode(order.line),
            "environment": {os.fsencode(key): os.fsencode(value) for key, value in order.environment.items()},
            "folder": order.folder,
            "about": order.about.encode(errors="surrogateescape"),
            "detach": order.detach,
            "merged": order.merged,
            "stdin": order.stdin,
            "linger": order.linger.total_seconds() if order.linger else 0,
            "limit": order.limit.total_seconds() if order.limit else 0,
            "offsets": offsets,
            "must_exist": must_exist,
        }
    )
