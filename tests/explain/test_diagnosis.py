"""Messages as they were met, and what is made of each: specific beats generic, text beats code, reason beats text."""

from __future__ import annotations

import re
import time
from importlib import resources

import pytest
import yaml

from tpuctl import errors
from tpuctl.explain.messages import Action, MessageOrigin, classify, known_messages

# Quoted from issues, logs and sources (see `source` in data/messages); wrapped, since white space does not count.
_EXAMPLES = """
auth-insufficient-scopes api
  googleapiclient.errors.HttpError: < HttpError 403 when requesting
  https://content-tpu.googleapis.com/v1/projects/{PROJECT}/locations/{ZONE}/nodes/{TPU_NAME}?alt=json returned
  "Request had insufficient authentication scopes."
auth-no-adc api
  Your default credentials were not found. To set up Application Default Credentials, see
  https://cloud.google.com/docs/authentication/external/set-up-adc for more information.
auth-reauth-needed api
  Reauthentication is needed. Please run `gcloud auth application-default login` to reauthenticate.
auth-no-active-account api
  You do not currently have an active account selected.
auth-grant-expired api
  ('invalid_grant: Token has been expired or revoked.', {'error': 'invalid_grant'})
auth-no-quota-project api
  Your application has authenticated using end user credentials from Google Cloud SDK without a quota project.
  You might receive a "quota exceeded" or "API not enabled" error. See the following page for troubleshooting:
  https://cloud.google.com/docs/authentication/adc-troubleshooting/user-creds.
auth-missing api
  UNAUTHENTICATED: Request is missing required authentication credential. Expected OAuth 2 access token
api-disabled api
  googleapiclient.errors.HttpError: <HttpError 403 when requesting
  https://tpu.googleapis.com/v1alpha1/projects/qwiklabs-gcp-36677528dc4d202e/locations/europe-west1-c/nodes/laktpu?alt=json
  returned "Cloud TPU API has not been used in project 1032299714650 before or it is disabled. Enable it by
  visiting https://console.developers.google.com/apis/api/tpu.googleapis.com/overview?project=1032299714650 then
  retry. If you enabled this API recently, wait a few minutes for the action to propagate to our systems and
  retry.">
billing-free-trial api
  2018/05/14 15:13:25 googleapi: Error 403: cannot create a TPU Node on a project linked to a free-trial billing
  account, forbidden
billing-disabled api
  This API method requires billing to be enabled. Please enable billing on project flutter-recette-october-2025
  by visiting https://console.developers.google.com/billing/enable?project=flutter-recette-october-2025 then
  retry. If you enabled billing for this project recently, wait a few minutes for the action to propagate to our
  systems and retry.
iam-act-as api
  PERMISSION_DENIED: Permission 'iam.serviceAccounts.actAs' denied on service account
  robot@p.iam.gserviceaccount.com
iam-impersonation api
  PERMISSION_DENIED: Permission 'iam.serviceAccounts.getAccessToken' denied on resource (or it may not exist).
iam-permission-denied api
  <HttpError 403 when requesting
  https://tpu.googleapis.com/v1alpha1/projects/directed-sensor-172921/locations/us-central1-b/nodes/ai?alt=json
  returned "Permission 'tpu.nodes.get' denied on
  'projects/directed-sensor-172921/locations/us-central1-b/nodes/ai'">
iam-location-policy api
  ERROR: (gcloud.compute.tpus.tpu-vm.create) PERMISSION_DENIED: Permission denied on 'locations/us-central2-b'
  (or it may not exist).
iam-read-access-denied api
  ERROR: (gcloud.compute.tpus.list) PERMISSION_DENIED: Read access to project 'annotator-1286' was denied
iam-project-not-found api
  googleapi.Error{Code:403, Message:"Project 'Data-Mining' not found or permission denied."} ... underlying
  error returned from the TPU API: Message:"Permission denied on resource project Data-Mining."
project-suspended api
  PERMISSION_DENIED: Permission denied: Consumer 'projects/p' has been suspended.
perimeter-violated api
  PERMISSION_DENIED: Request is prohibited by organization's policy. vpcServiceControlsUniqueIdentifier: x
org-policy-shielded-vm api
  Cloud TPU received a bad request. Constraint constraints/compute.requireShieldedVm violated. Please create
  TPUs with Secure Boot enabled
org-policy api
  FAILED_PRECONDITION: Constraint constraints/compute.vmExternalIpAccess violated for project p
quota-limit-zero api
  googleapiclient.errors.HttpError: <HttpError 429 when requesting
  https://tpu.googleapis.com/v2alpha1/projects/hai-gcp-models/locations/us-east5-b/nodes?nodeId=x&alt=json
  returned "Quota limit 'TPUV6EPreemptiblePerProjectPerRegionForTPUAPI' has been exceeded. Limit: 0 in region
  us-east5.">
quota-limit-exceeded api
  "message": "Quota limit 'TPUV6EPreemptiblePerProjectPerRegionForTPUAPI' has been exceeded. Limit: 64 in region
  europe-west4.", "status": "RESOURCE_EXHAUSTED"
quota-exhausted api
  Quota 'TPUV4sPreemptiblePodPerProjectPerRegionForTPUAPI' exhausted. Limit 20800 in region us-central2
quota-vertex api
  google.api_core.exceptions.ResourceExhausted: 429 The following quota metrics exceed quota limits:
  aiplatform.googleapis.com/custom_model_training_tpu_v2
quota-create-rate api
  Maximum number of CreateNode requests per minute
quota-rate api
  RESOURCE_EXHAUSTED: Quota exceeded for quota metric 'Read requests' and limit 'Read requests per minute' of
  service 'tpu.googleapis.com'
quota-rate-older api
  rateLimitExceeded: Rate Limit Exceeded
capacity-zone operation
  (gcloud.compute.tpus.tpu-vm.create) { "code": 8, "message": "There is no more capacity in the zone
  \\"us-central1-b\\"; you can try in another zone where Cloud TPU Nodes are offered (see
  https://cloud.google.com/tpu/docs/regions) [EID: 0xe1d1ce9f2eae7a03]" }
capacity-reserved operation
  Got return code 8 in us-central1-a: 'Insufficient reserved capacity. Contact customer support to increase your
  reservation. [EID: 0x7adf6d58c08b0aa4]'
capacity-pool operation
  INTERNAL: The zone 'projects/p/zones/a' does not have enough resources available to fulfill the request.
storage-requester-pays api
  required: Bucket is a requester pays bucket but no user project provided.
tpu-node-architecture-denied api
  ERROR: (gcloud.compute.tpus.create) FAILED_PRECONDITION: Your request to provision TPU Node has been denied.
  Please migrate to TPU VM Architecture or contact Cloud TPU team to gain TPU Node access.
  https://cloud.google.com/tpu/docs/system-architecture-tpu-vm#from-tpu-node-to-tpu-vm
zone-not-supported api
  ERROR: (gcloud.alpha.compute.tpus.queued-resources.create) INVALID_ARGUMENT: Cloud TPU received a bad request.
  The requested zone "asia-northeast1-a" is not supported. [EID: 0x1994f24467802754].
accelerator-not-in-zone api
  ERROR: (gcloud.compute.tpus.tpu-vm.create) INVALID_ARGUMENT: Cloud TPU received a bad request. The requested
  accelerator configuration for accelerator type, "v5litepod-8", could not be found in the zonal accelerator
  configurations for "us-central1-b".; the accelerator v5litepod-8 was not found in zone us-central1-b [EID:
  0x5be9ca996f9773a4]
field-invalid api
  googleapi: Error 400: Cloud TPU received an invalid argument. The field "TensorflowVersion" cannot be "2.4".
  [EID: 0x90dfdfda32f61e59], badRequest
guest-attributes-missing api
  INVALID_ARGUMENT: Cloud TPU received an invalid argument. The "GuestAttributes" value "" was not found.
disk-not-attached api
  argument --detach-disk: The specified data disk projects/p/zones/z/disks/d is not currently attached to the
  TPU VM.
already-exists api
  ERROR: (gcloud.compute.tpus.create) ALREADY_EXISTS: Resource
  'projects/intercloud-320520/locations/us-central1-a/nodes/sky_tpu' already exists - '@type':
  type.googleapis.com/google.rpc.ResourceInfo resourceName:
  projects/intercloud-320520/locations/us-central1-a/nodes/sky_tpu
stop-not-supported-qr api
  StopNode is not supported for queued resources
stop-not-supported-slice api
  FAILED_PRECONDITION: This operation is only available with single TPU nodes.
start-not-supported-tier api
  INVALID_ARGUMENT: Spot VM TPUs cannot be restarted, and must be recreated again.
state-forbids-for-now operation
  INVALID_ARGUMENT: Cloud TPU received a bad request. stop is not supported while in state STARTING [EID: 0x1]
state-forbids-action operation
  Cloud TPU received a bad request. update is not supported while in state PREEMPTED [EID: 0x73013519f5b7feb2]
symptom-low-memory api
  symptomType: LOW_MEMORY
symptom-hbm-out-of-memory api
  symptomType: HBM_OUT_OF_MEMORY
symptom-out-of-memory api
  symptomType: OUT_OF_MEMORY
symptom-execute-timed-out api
  symptomType: EXECUTE_TIMED_OUT
symptom-mesh-build-fail api
  symptomType: MESH_BUILD_FAIL
symptom-project-abuse api
  symptomType: PROJECT_ABUSE
health-unhealthy api
  `state=READY` with `health=UNHEALTHY_TENSORFLOW` / `UNHEALTHY_MAINTENANCE` / `TIMEOUT` does not clear on its
  own and the watchdog logs `not launchable` indefinitely.
health-maintenance api
  health: UNHEALTHY_MAINTENANCE
maintenance-none api
  { "error": "no notifications have been received yet, try again later" }
op-wait-timeout operation
  Operation projects/p/locations/z/operations/o has not finished in 1800 seconds.
internal-error-qr queued-resource
  {"code": 13, "message": "an internal error has occurred"}
internal-error operation
  Error: Error waiting to create Vm: Error waiting for Creating Vm: Error code 13, message: an internal error
  has occurred
qr-suspended-by-service queued-resource
  `alt-v5p-probe-001` transitioned to `state: SUSPENDED` - `stateInitiator: SERVICE` - `queued-resources reset`
  is not allowed from `SUSPENDED` - `tpu-vm start alt-v5p-probe-001` fails because the underlying node no longer
  exists
qr-node-prefix queued-resource
  Can only specify --node-prefix if --node-count is also specified.
qr-node-count queued-resource
  Node count must be greater than 1
qr-timing-constraint queued-resource
  Only one timing constraint for each of (start, end) time is permitted
provisioning-model-invalid queued-resource
  foo is not a valid provisioning model, must be one of [standard, spot, reservation-bound, flex-start]
capacity-word operation
  RESOURCE_EXHAUSTED: Insufficient capacity.
quota-word api
  RESOURCE_EXHAUSTED: The quota of something new is used up.
node-not-found api
  ERROR: (gcloud.compute.tpus.tpu-vm.describe) NOT_FOUND:
nothing-found api
  NOT_FOUND: Requested entity was not found.
exhausted-operation operation
  RESOURCE_EXHAUSTED: something new
exhausted-api api
  RESOURCE_EXHAUSTED: something new
bad-request api
  INVALID_ARGUMENT: Cloud TPU received a bad request. Something new. [EID: 0x1]
"""
EXAMPLES = [tuple(row.split(None, 2)) for row in re.split(r"\n(?=\S)", _EXAMPLES.strip())]


@pytest.mark.parametrize(("known", "where", "text"), EXAMPLES, ids=[row[0] for row in EXAMPLES])
def test_message_is_recognized_from_its_example(known: str, where: str, text: str) -> None:
    verdict = classify(text, where=MessageOrigin(where))

    assert verdict is not None
    assert verdict.id == known
    assert "{" not in " ".join(verdict.remedy)


def test_every_api_message_has_one_example() -> None:
    """Those of ssh are in `tests/ssh/test_failures.py`, those of gcloud in `diagnosis/test_messages_of_gcloud.py`."""
    folder = resources.files("tpuctl.data").joinpath("messages")
    entries = [
        yaml.load(folder.joinpath(f"{name}.yaml").read_text("utf-8"), yaml.CSafeLoader)
        for name in ("api", "operations")
    ]

    assert sorted(entry["id"] for file in entries for entry in file) == sorted(row[0] for row in EXAMPLES)


def test_every_kind_belongs_to_an_exception() -> None:
    classes = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception)]

    assert {message.kind for message in known_messages()} <= {getattr(value, "kind", "") for value in classes}


def test_every_placeholder_of_a_remedy_is_a_group_of_the_pattern() -> None:
    at_hand, of_ssh = {"node", "worker"}, {"login", "address", "key", "alias", "known_hosts"}
    wanted = {
        m.id: set(re.findall(r"\{(\w+)\}", " ".join((m.meaning, *m.remedy))))
        - set(re.compile(m.match).groupindex)
        - at_hand
        - (of_ssh if m.where is MessageOrigin.SSH else set())
        for m in known_messages()
    }

    assert {key: names for key, names in wanted.items() if names} == {}


@pytest.mark.parametrize(
    ("where", "text", "known"),
    [
        # The same code 8 means three things.
        ("operation", 'RESOURCE_EXHAUSTED: There is no more capacity in the zone "us-x1-b"; you can', "capacity-zone"),
        (
            "operation",
            "RESOURCE_EXHAUSTED: Quota limit 'TPUV6EX' has been exceeded. Limit: 8 in region a",
            "quota-limit-exceeded",
        ),
        ("api", "RESOURCE_EXHAUSTED: Quota 'TPUV5E' exhausted. Limit 0 in zone us-x1-b", "quota-limit-zero"),
        ("api", "RESOURCE_EXHAUSTED: stockout", "capacity-word"),
        # The same code 3 means two.
        ("api", "INVALID_ARGUMENT: stop is not supported while in state STOPPED", "state-forbids-action"),
        ("operation", 'INVALID_ARGUMENT: The requested zone "a-b1-c" is not supported.', "zone-not-supported"),
        # The same text means different things in different places.
        ("queued-resource", "INTERNAL: an internal error has occurred", "internal-error-qr"),
        ("api", "INTERNAL:\n  an internal\terror has occurred", "internal-error"),
        ("api", "NOT_FOUND: Resource 'projects/p/locations/z/nodes/n' was not found", "node-not-found"),
        ("api", "UNAVAILABLE: try again", None),
        ("api", "", None),
    ],
)
def test_classify_same_code_by_text(where: str, text: str, known: str | None) -> None:
    verdict = classify(text, where=MessageOrigin(where))

    assert (verdict.id if verdict else None) == known


@pytest.mark.parametrize(
    ("reason", "text", "known"),
    [
        ("SERVICE_DISABLED", "PERMISSION_DENIED: words that nobody has seen", "api-disabled"),
        ("BILLING_DISABLED", "PERMISSION_DENIED: Permission 'tpu.nodes.get' denied on x", "billing-disabled"),
        ("ACCESS_TOKEN_SCOPE_INSUFFICIENT", "PERMISSION_DENIED: x", "auth-insufficient-scopes"),
        ("CREDENTIALS_MISSING", "UNAUTHENTICATED: x", "auth-missing"),
        ("LOCATION_POLICY_VIOLATED", "PERMISSION_DENIED: x", "iam-location-policy"),
        # One reason, several messages: the text chooses.
        (
            "RATE_LIMIT_EXCEEDED",
            "RESOURCE_EXHAUSTED: Quota limit 'TPUX' has been exceeded. Limit: 0 in zone a",
            "quota-limit-zero",
        ),
        ("RATE_LIMIT_EXCEEDED", "RESOURCE_EXHAUSTED: x", "quota-rate"),
        ("SOMETHING_NEW", "NOT_FOUND: x", "nothing-found"),
    ],
)
def test_classify_reason_beats_text(reason: str, text: str, known: str) -> None:
    verdict = classify(text, where=MessageOrigin.API, reason=reason)

    assert verdict is not None
    assert verdict.id == known


def test_classify_returns_facts_of_message() -> None:
    text = "RESOURCE_EXHAUSTED: Quota limit 'TPUV6EPerProjectPerZone' has been exceeded. Limit: 0 in zone us-east5-b."
    verdict = classify(text, where=MessageOrigin.API)

    assert verdict is not None
    assert (verdict.kind, verdict.action, verdict.retriable) == ("quota", Action.QUOTA, False)
    assert dict(verdict.facts) == {"quota": "TPUV6EPerProjectPerZone", "place": "us-east5-b"}
    assert verdict.remedy[0] == (
        "request quota for `TPUV6EPerProjectPerZone` in us-east5-b; there are limits for the region and for the zone, "
        "and both count"
    )


def test_classify_unknown_placeholder_becomes_capitals() -> None:
    verdict = classify("PERMISSION_DENIED: x", where=MessageOrigin.API, reason="BILLING_DISABLED")

    assert verdict is not None
    assert verdict.remedy[0].startswith("run `gcloud billing projects link PROJECT --billing-account=ACCOUNT`")


def test_classify_long_hostile_text_is_fast() -> None:
    before = time.perf_counter()
    classify("RESOURCE_EXHAUSTED: " + "Quota 'TPU" * 100_000, where=MessageOrigin.API)

    assert time.perf_counter() - before < 1
