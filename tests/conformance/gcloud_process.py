"""gcloud, loaded once and forked for each command: loading takes six times as long as a command.

Runs under gcloud's own Python: `python gcloud_process.py SDK_ROOT`. Reads requests from stdin, one line of JSON each. The
exit code of a command is written to the pipe that its request names, so that several can run at a time.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import sys
from importlib import import_module
from pathlib import Path

_OF_REQUESTS = ("googlecloudsdk.core.credentials.transports", "googlecloudsdk.core.requests", "proto")


def serve(root: Path) -> None:
    """Answer requests until stdin ends."""
    sys.path[:0] = [str(root / "lib"), str(root / "lib" / "third_party")]
    from googlecloudsdk import gcloud_main  # type: ignore[import-not-found]  # noqa: PLC0415  # found on that path only

    # Incomplete command lines load the modules that nearly all commands need.
    for group in ("compute tpus tpu-vm", "compute tpus queued-resources", "storage buckets"):
        _run(gcloud_main, [*group.split(), "describe"], os.devnull, os.devnull)
    # They are needed to send requests, and loaded only then.
    for name in _OF_REQUESTS:
        with contextlib.suppress(ImportError):  # another version of gcloud
            import_module(name)
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        request = json.loads(line)
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # `gcloud ssh` reads its stdin, here the next requests
            os.environ.clear()
            os.environ.update(request["environ"])
            code = _run(gcloud_main, request["words"], request["stdout"], request["stderr"])
            Path(request["exit_code"]).write_text(str(code), "utf-8")
            os._exit(0)


def _run(gcloud_main: object, words: list[str], stdout: str, stderr: str) -> int:
    for number, place in ((1, stdout), (2, stderr)):
        opened = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    sys.argv = ["gcloud", *words]
    try:
        code = gcloud_main.main()  # type: ignore[attr-defined]
    except SystemExit as end:
        code = end.code
    sys.stdout.flush()
    sys.stderr.flush()
    return int(code or 0)


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
