"""Create Google Cloud TPUs, keep them usable, and run programs on them.

Programs use `Client` and the names in `__all__`, which docs/python.md describes; each is imported when it is first used. All
else is internal.

Each package below is a room with one feature, or an engine that rooms share; its docstring says where to start reading, and
ARCHITECTURE.md has the map. The modules of this package are the base: every room may import them, and they import only one
another. `errors` has the exceptions and exit codes, `clock` all access to time, `decoding`, `files` and `escaping` the checks
for JSON, files and text from outside, `names`, `accelerators` and `durations` what users write, `platforms` Linux and macOS,
`installation` where tpuctl is installed. `client` is the Python API.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tpuctl.client import Client
    from tpuctl.clock import ManualClock
    from tpuctl.errors import (
        AccessError,
        AlreadyExistsError,
        BrokenNodeError,
        CheckFailedError,
        ConflictError,
        CredentialsError,
        ExitCode,
        FailedStartupError,
        InvalidInputError,
        NoCapacityError,
        NotConfirmedError,
        NotFoundError,
        OutcomeUnknownError,
        PreemptedError,
        QuotaError,
        RemoteCommandError,
        ServiceUnavailableError,
        SettingError,
        TimedOutError,
        TpuctlError,
    )
    from tpuctl.models.events import EventKind, NodeEvent
    from tpuctl.models.node import DataDisk, Health, Node, NodeState, Tier
    from tpuctl.models.spec import NodeSpec
    from tpuctl.names import NodeName
    from tpuctl.nodes.conditions import Condition
    from tpuctl.nodes.lookup import IncompleteListError
    from tpuctl.workers.captured_run import CommandResult, JobInfo, OutputPiece, WorkerFiles, WorkerRun
    from tpuctl.workers.execution import RunDiagnosis
    from tpuctl.workers.worker_session import WorkerOutcome

__version__ = "0.1.0"
# The modules of the public names. Importing all of them here would cost each command 100 ms.
_MODULES = {
    "client": ("Client",),
    "clock": ("ManualClock",),
    "errors": (
        *(
            "AccessError",
            "AlreadyExistsError",
            "BrokenNodeError",
            "CheckFailedError",
            "ConflictError",
            "CredentialsError",
        ),
        *(
            "ExitCode",
            "FailedStartupError",
            "InvalidInputError",
            "NoCapacityError",
            "NotConfirmedError",
            "NotFoundError",
            "OutcomeUnknownError",
        ),
        *(
            "PreemptedError",
            "QuotaError",
            "RemoteCommandError",
            "ServiceUnavailableError",
            "SettingError",
            "TimedOutError",
        ),
        "TpuctlError",
    ),
    "models.events": ("EventKind", "NodeEvent"),
    "models.node": ("DataDisk", "Health", "Node", "NodeState", "Tier"),
    "models.spec": ("NodeSpec",),
    "names": ("NodeName",),
    "nodes.conditions": ("Condition",),
    "nodes.lookup": ("IncompleteListError",),
    "workers.captured_run": ("CommandResult", "JobInfo", "OutputPiece", "WorkerFiles", "WorkerRun"),
    "workers.execution": ("RunDiagnosis",),
    "workers.worker_session": ("WorkerOutcome",),
}
__all__ = (
    "AccessError",
    "AlreadyExistsError",
    "BrokenNodeError",
    "CheckFailedError",
    "Client",
    "CommandResult",
    "Condition",
    "ConflictError",
    "CredentialsError",
    "DataDisk",
    "EventKind",
    "ExitCode",
    "FailedStartupError",
    "Health",
    "IncompleteListError",
    "InvalidInputError",
    "JobInfo",
    "ManualClock",
    "NoCapacityError",
    "Node",
    "NodeEvent",
    "NodeName",
    "NodeSpec",
    "NodeState",
    "NotConfirmedError",
    "NotFoundError",
    "OutcomeUnknownError",
    "OutputPiece",
    "PreemptedError",
    "QuotaError",
    "RemoteCommandError",
    "RunDiagnosis",
    "ServiceUnavailableError",
    "SettingError",
    "Tier",
    "TimedOutError",
    "TpuctlError",
    "WorkerFiles",
    "WorkerOutcome",
    "WorkerRun",
    "__version__",
)


def __getattr__(name: str) -> object:
    """Import a public name when it is first used."""
    for module, names in _MODULES.items():
        if name in names:
            from importlib import import_module  # noqa: PLC0415  # commands import no name from here

            value: object = getattr(import_module(f"{__name__}.{module}"), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module `{__name__}` has no attribute `{name}`")


def __dir__() -> list[str]:
    return [*__all__, *globals()]
