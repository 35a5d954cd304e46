"""A request in the form that the program on a worker takes: a Python literal."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tpuctl.remote.running.values import Order


def order_text(request: Order, worker: int, *, offsets: tuple[int, int], must_exist: bool) -> str:
    """Return the literal. The worker sends output from `offsets` on; with `must_exist` it does not start the command."""
    return repr(
        {
            "name": f"{request.job}.{worker}",
            "token": request.token.encode(),
            "line": os.fsencode(request.line),
            "environment": {os.fsencode(key): os.fsencode(value) for key, value in request.environment.items()},
            "folder": request.folder,
            "about": request.about.encode(errors="surrogateescape"),
            "detach": request.detach,
            "merged": request.merged,
            "stdin": request.stdin,
            "linger": request.linger.total_seconds() if request.linger else 0,
            "limit": request.limit.total_seconds() if request.limit else 0,
            "offsets": offsets,
            "must_exist": must_exist,
        }
    )
