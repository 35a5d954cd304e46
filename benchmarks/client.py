"""Waiting times of a client of the sandbox, in seconds on stdout: `python -m benchmarks.client WHAT …`, a process of its own.

get-in-process FILE, get URL (medians of many), list URL (every node, page by page), start PROGRAM… (until its first answer).
"""

from __future__ import annotations

import http.client
import json
import statistics
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from tpuctl.sandbox.in_process import SandboxHttp
from tpuctl.sandbox.state import SandboxState

if TYPE_CHECKING:
    from collections.abc import Callable

_TIMES = 200
_PAGE = 1000
_NODES = "/v2/projects/sandbox/locations/-/nodes"
_NODE = "/v2/projects/sandbox/locations/us-central2-b/nodes/node-00000"


def main(what: str, *words: str) -> float:
    """Return the seconds of one measurement."""
    match what:
        case "get-in-process":
            with SandboxState.open(Path(words[0])) as sandbox_state:
                client = SandboxHttp(sandbox_state)
                return _median(lambda: _expect_200(int(client.request(f"https://tpu.googleapis.com{_NODE}")[0].status)))
        case "get":
            with closing(_connect(words[0])) as connection:
                return _median(lambda: _get(connection, _NODE))
        case "list":
            with closing(_connect(words[0])) as connection:
                return _time(lambda: _list(connection))
        case "start":
            return _start(words)
        case _:
            raise SystemExit(__doc__)


def _start(command: tuple[str, ...]) -> float:
    began = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            assert server.stdout is not None
            with closing(_connect(server.stdout.readline().strip())) as connection:
                _get(connection, _NODE)
                return time.perf_counter() - began
        finally:
            server.terminate()


def _list(connection: http.client.HTTPConnection) -> None:
    path: str | None = f"{_NODES}?pageSize={_PAGE}"
    while path:
        token = _get(connection, path).get("nextPageToken")
        path = f"{_NODES}?pageSize={_PAGE}&pageToken={token}" if token else None


def _connect(url: str) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)


def _get(connection: http.client.HTTPConnection, path: str) -> Any:
    connection.request("GET", path)
    answer = connection.getresponse()
    content = answer.read()
    _expect_200(answer.status)
    return json.loads(content)


def _expect_200(status: int) -> None:
    if status != 200:
        raise SystemExit(f"answered {status}")


def _median(act: Callable[[], object]) -> float:
    act()  # the first one opens the connection
    return statistics.median(_time(act) for _ in range(_TIMES))


def _time(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


if __name__ == "__main__":
    print(main(*sys.argv[1:]))
