"""The sandbox: a local Cloud TPU API that costs nothing.

It serves the JSON of Google's APIs. It imports the base modules (`accelerators`, `names`, `errors`, `clock`, `decoding`, …) and
nothing else of the client: a client's mistake cannot be repeated here. Its schema comes from Google's discovery documents,
its rules from observations of the real service. A fact without a source is marked `unverified` where it stands.

- `service.answer_request` turns one HTTP request into one response. Both interfaces call it: `in_process` for a client in
  the same process, `http_server` on a loopback port. The request is matched with its API method and checked
  (`discovery`), a fault may intercept it (`faults`), `service.check_admission` rejects calls to unusable projects, and the
  handler of the method, marked with `@answers`, returns the response. Start reading there, then `tpu_nodes`.
- The resources of all other APIs are JSON in one store, `state_session.ResourceStore`. The kinds of Compute Engine share their
  handlers (`compute_engine._KINDS`). Each other API has a module with the behaviour that differs: permissions and errors,
  IAM policies with conditions and etags, billing, quotas by metric, effective policies, preconditions and generations of
  objects. Their plain reads and deletions are 13 handlers of 70 lines: a shared one would not be shorter.
- `state` is a SQLite file (`state_file`) that any number of processes share, with the sandbox's clock. A handler works in one
  transaction, a `state_session.StateSession`, at one time; an `ApiError` rolls it back.
- No process runs between two requests. A record has a timeline of past and planned phases (`lifecycle`), and its state
  follows from the time. Operations end, queued resources get capacity and scenarios happen in the same way: the next process
  that opens the file runs what is due, each event at its own time.
- `stock` says how many nodes fit in a zone. At the end of each transaction that changes the stock or its use, and at the next
  release of capacity, `tpu_queued_resources.schedule` provisions the waiting queued resources for which there is room.
- Faults change timelines when a node is planned, or when they are added for an existing node; faults of calls are used up one
  by one.
- `administration`, `seeding` and `scenarios` prepare a sandbox from outside its API; tests use `administration`.
- `sshd` gives each ssh connection to a worker an OpenSSH sshd of its own, with the programs of `data/guest`; `shims` lets
  gcloud find it.

For tests of other tools it offers `Sandbox` (docs/contributing/test-your-own-tool.md), and `SeedError` for an invalid seed.
Everything else in this package may change.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tpuctl.sandbox.embedding import Sandbox
    from tpuctl.sandbox.seeding import SeedError

__all__ = ["Sandbox", "SeedError"]

_HOMES = {"Sandbox": "tpuctl.sandbox.embedding", "SeedError": "tpuctl.sandbox.seeding"}


def __getattr__(name: str) -> Any:  # any attribute
    # Every module of the package imports this one first, so the public names are imported on first use.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
