"""TPU Nodes: the architecture of API v1 and v1alpha1, which Google has closed; a sandbox setting enables it.

Such a node is stored like every other, with the field names of v2 and an `apiVersion` that distinguishes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.sandbox import catalog
from tpuctl.sandbox.refusals import failed_precondition

if TYPE_CHECKING:
    from tpuctl.sandbox.calls import Call, Json
    from tpuctl.sandbox.world import Session

_GUIDE = "https://cloud.google.com/tpu/docs/system-architecture-tpu-vm#from-tpu-node-to-tpu-vm"
API_VERSIONS = {"v1": "V1", "v1alpha1": "V1_ALPHA1"}


def admit(session: Session, call: Call) -> Json:
    """Return the body of a v1 create with the field names of v2.

    Raises `ApiError` 400, verbatim (observed: skypilot#5593), unless the sandbox setting `legacy_nodes` is true.
    """
    if not session.setting("legacy_nodes", default=False):
        raise failed_precondition(
            "Your request to provision TPU Node has been denied. Please migrate to TPU VM Architecture or contact Cloud TPU "
            f"team to gain TPU Node access. {_GUIDE}"
        )
    catalog.check_tensorflow_version(str(call.body.get("tensorflowVersion", "")))
    same = ("acceleratorType", "description", "labels", "schedulingConfig", "cidrBlock", "useServiceNetworking")
    body = {field: call.body[field] for field in same if field in call.body}
    body["runtimeVersion"] = call.body.get("tensorflowVersion", "")
    body["networkConfig"] = {"network": str(call.body.get("network") or "default")}
    body["apiVersion"] = API_VERSIONS[call.version]
    return body
