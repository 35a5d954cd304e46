"""Clients of Cloud Storage: small objects with generations as preconditions, and the configuration of buckets.

`StorageClient` reads and replaces records that several machines share, not data sets: it keeps an object in memory.
`BucketsClient` reads a bucket's location, IAM policy and contents.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from tpuctl.cloud.errors import (
    PERMISSION_DENIED,
    ApiError,
    GarbledAnswerError,
    TransportError,
    query_errors,
    translate,
)
from tpuctl.cloud.requests import (
    FEW_RETRIES,
    ApiClient,
    Read,
    is_uncertain,
    read_json,
    read_page,
)
from tpuctl.command_text import fill_text
from tpuctl.decoding import By, decode, decoder_of
from tpuctl.durations import parse_http_date
from tpuctl.errors import (
    AccessError,
    ConflictError,
    NotFoundError,
    OutcomeUnknownError,
    PreconditionFailedError,
    ServiceUnavailableError,
)
from tpuctl.models.api_values import ApiCount, ApiText, ApiTime, api_integer
from tpuctl.models.bucket import AnywhereCache, Bucket, BucketContents, BucketPlacement
from tpuctl.models.project import GrantedPermissions, IamPolicy

if TYPE_CHECKING:
    from collections.abc import Collection

T = TypeVar("T")

_GET = "storage.v1 objects.get"
_LIST = "storage.v1 objects.list"
# Attempts to read an object that others keep replacing.
_READS = 5
# One object may be written once per second, with short bursts [documentation of quotas].
_WRITE_PAUSE = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class _Head:
    generation: ApiCount
    updated: ApiTime = None
    # An object is held in memory.
    size: Annotated[int, By(api_integer("at most 64 MiB", 0, 64 << 20))] = 0


@dataclass(frozen=True, slots=True)
class _Listed:
    name: ApiText
    size: ApiCount = 0


@dataclass(frozen=True, slots=True)
class Blob:
    """One stored version of an object."""

    content: bytes
    # It increases with every write, and is never used again, not even after a delete [API field text].
    generation: int
    # The time since the write, by the clock of the service (`Date` of the answer less `updated` of the object), in whole
    # seconds, never negative. The clocks of machines do not matter.
    age: timedelta


class StorageClient(ApiClient):
    """Calls Cloud Storage."""

    def read(self, bucket: str, name: str) -> Blob | None:
        """Return the newest version; None only after a 404 from the API.

        Raises `NotFoundError` for a bucket that does not exist.
        """
        with _translated(bucket, name, "storage.objects.get"):
            for _ in range(_READS):
                head = self._head(bucket, name)
                if head is None:
                    # The service also answers 404 for a missing bucket, for which this call raises.
                    with _translated(bucket, name, "storage.objects.list"):
                        self._attempt(self._build(_LIST, bucket=bucket, prefix=name, maxResults=1), _read_objects)
                    return None
                generation, age = head
                request = self._build(_GET, bucket=bucket, object=name, generation=generation, alt="media")
                try:
                    content = self._exchange(request, lambda _, content: content)
                except ApiError as error:
                    if error.response.is_not_found:  # replaced or deleted meanwhile
                        continue
                    raise
                return Blob(content, generation, age)
        raise ServiceUnavailableError(
            f"`gs://{bucket}/{name}` changes faster than it can be read", hint="try again in a moment"
        )

    def write(self, bucket: str, name: str, content: bytes, *, generation: int | None) -> int:
        """Replace the object and return its new generation.

        `generation` is that of the version to replace, 0 if the object must not exist, None for any version. Raises
        `PreconditionFailedError` for another version. After a lost answer the object is read: a newer version with the
        same content counts as ours, so that different writers must never write equal contents.
        """
        request = self._build(
            "storage.v1 objects.insert", bucket=bucket, name=name, ifGenerationMatch=generation, upload=content
        )

        def send() -> int:
            # Without a precondition the last writer wins anyway: a retry is harmless.
            return self._attempt(request, decoder_of(_Head), is_safe=generation is None).generation

        def find_result() -> int | None:
            stored = self.read(bucket, name)
            if stored is not None and stored.generation != generation and stored.content == content:
                return stored.generation
            if generation is not None and (stored.generation if stored else 0) != generation:
                raise _precondition_failed(bucket, name)
            return None

        with _translated(bucket, name, "storage.objects.create"):
            return self._send_and_confirm(
                send,
                find_result,
                partial(_unknown, bucket, name),
                is_unsure=is_uncertain if generation is None else _may_repeat,
                pause=_WRITE_PAUSE,
            )

    def delete(self, bucket: str, name: str, *, generation: int | None) -> None:
        """Delete the object of that generation, or of any with None; succeeds if it is gone.

        Raises `PreconditionFailedError` if another version is there.
        """
        request = self._build("storage.v1 objects.delete", bucket=bucket, object=name, ifGenerationMatch=generation)
        with _translated(bucket, name, "storage.objects.delete"):
            try:
                self._exchange(request, lambda *_: None)
            except ApiError as error:
                if error.response.is_not_found:
                    return
                # The service may check the precondition before it checks whether the object exists.
                if error.response.code != 412 or self._head(bucket, name) is not None:
                    raise

    def list(self, bucket: str, prefix: str) -> Iterator[str]:
        """Return the names of the objects that begin with `prefix`, in the service's order."""
        with _translated(bucket, prefix, "storage.objects.list"):
            listing = self._pages(_LIST, "items", decoder_of(_Listed), bucket=bucket, prefix=prefix)
            return (listed.name for listed in listing.items)

    def _head(self, bucket: str, name: str) -> tuple[int, timedelta] | None:
        """Return generation and age; None if the object or the bucket is absent."""

        def read(headers: Mapping[str, str], content: bytes) -> tuple[int, timedelta]:
            head = read_json(content, decoder_of(_Head))
            if head.updated is None:
                raise GarbledAnswerError("the answer does not contain the time when the object was updated")
            now = parse_http_date(headers.get("date"))
            if now is None:
                # With the clock of this machine, the lease of another holder could expire too early.
                raise GarbledAnswerError("the answer does not contain the service's time")
            return head.generation, max(now - head.updated, timedelta())

        request = self._build(_GET, bucket=bucket, object=name)
        try:
            return self._exchange(request, read)
        except ApiError as error:
            if error.response.is_not_found:
                return None
            raise


def _may_repeat(failure: TransportError | ApiError) -> bool:
    """Return whether to read the object and retry a write: its outcome is uncertain, or it came too soon after another."""
    is_too_soon = isinstance(failure, ApiError) and failure.response.code == 429
    return is_too_soon or is_uncertain(failure)


@contextmanager
def _translated(bucket: str, name: str, permission: str) -> Iterator[None]:
    try:
        yield
    except (TransportError, ApiError) as failure:
        response = failure.response if isinstance(failure, ApiError) else None
        if response is not None and response.is_not_found:
            create = "create it with `gcloud storage buckets create gs://{bucket} --location=REGION`, or check the name"
            hint = fill_text(create, {"bucket": bucket})
            raise NotFoundError(f"there is no bucket `gs://{bucket}`", hint=hint) from failure
        if response is not None and response.code == 412:
            raise _precondition_failed(bucket, name) from failure
        error = translate(failure)
        if response is not None and response.code == 403 and error.error_id in {None, PERMISSION_DENIED}:
            hint = "grant `roles/storage.objectUser` on the bucket to your identity (`tpuctl config show`)"
            message = f"`{permission}` is not allowed on `gs://{bucket}`: {response.message}"
            raise AccessError(message, hint=hint) from failure
        raise error from failure


def _precondition_failed(bucket: str, name: str) -> PreconditionFailedError:
    return PreconditionFailedError(f"`gs://{bucket}/{name}` was changed by another client meanwhile", hint="try again")


def _unknown(bucket: str, name: str, failure: Exception) -> OutcomeUnknownError:
    return OutcomeUnknownError(
        f"it is unknown whether `gs://{bucket}/{name}` was written: {failure}", hint="try again in a few minutes"
    )


_read_objects = partial(read_page, "items", decoder_of(_Listed))


_PAGE_SIZE = 1000
# A policy that is changed all the time may have to be read and written so often.
_GRANTS = 6
_CHANGED_MEANWHILE = frozenset({409, 412})
# Policies with conditions have this version; asked for less, the service refuses to show such a one [API field text].
_POLICY_VERSION = 3


class BucketsClient(ApiClient):
    """Calls Cloud Storage. `user_project` is billed for requests to requester-pays buckets.

    Without it, such a bucket raises `InvalidRequestError` with the `error_id` `storage-requester-pays`.
    """

    retry_policy = FEW_RETRIES

    def bucket(self, name: str, *, user_project: str | None = None) -> Bucket:
        """Return a bucket's metadata; needs storage.buckets.get."""
        return self._ask("buckets.get", Bucket.from_json, name, "storage.buckets.get", userProject=user_project)

    def layout(self, name: str, *, user_project: str | None = None) -> BucketPlacement:
        """Return the location of a bucket; needs storage.objects.list only [API storage v1, method text]."""
        # The method has no parameter for the billed project, so a header is used [API storage v1].
        method, permission = "buckets.getStorageLayout", "storage.objects.list"
        return self._ask(method, decoder_of(BucketPlacement), name, permission, payer=user_project)

    def policy(self, name: str, *, user_project: str | None = None) -> IamPolicy:
        """Return the IAM policy with its conditions; needs storage.buckets.getIamPolicy."""
        return self._read_policy(name, decoder_of(IamPolicy), user_project)

    def test_permissions(
        self, name: str, permissions: Collection[str], *, user_project: str | None = None
    ) -> frozenset[str]:
        """Return which of the permissions the caller has; needs none."""
        parameters = {"permissions": sorted(permissions), "userProject": user_project}
        read = decoder_of(GrantedPermissions)
        return self._ask("buckets.testIamPermissions", read, name, None, **parameters).permissions

    def contents(self, name: str, prefix: str, *, user_project: str | None = None) -> BucketContents:
        """Count the first thousand objects below a prefix; needs storage.objects.list.

        A folder marker, which is empty and ends with a slash, is not counted.
        """
        page = self._ask(
            "objects.list",
            _read_objects,
            name,
            "storage.objects.list",
            prefix=prefix or None,
            maxResults=_PAGE_SIZE,
            fields="items(name,size),nextPageToken",
            userProject=user_project,
        )
        sizes = [listed.size for listed in page.items if listed.size or not listed.name.endswith("/")]
        return BucketContents(len(sizes), sum(sizes), page.token is None)

    def caches(self, name: str, *, user_project: str | None = None) -> tuple[AnywhereCache, ...]:
        """Return the Anywhere Caches; needs storage.anywhereCaches.list."""
        with query_errors(_describe(name), "storage.anywhereCaches.list"):
            # See `layout`.
            return self._pages(
                "storage.v1 anywhereCaches.list",
                "items",
                AnywhereCache.from_json,
                payer=user_project,
                bucket=name,
                pageSize=_PAGE_SIZE,
            ).items

    def grant(self, name: str, role: str, member: str, *, user_project: str | None = None) -> None:
        """Add one member to one role. Other changes of the policy are kept, even simultaneous ones.

        An unconditional binding of the member stays unchanged. Raises `ConflictError` after six simultaneous changes.
        """
        for attempt in range(1, _GRANTS + 1):
            policy = _with_member(self._read_policy(name, _checked_policy, user_project), role, member)
            if policy is None or self._replace_policy(name, policy, user_project):
                return
            self._clock.sleep(self._back_off(attempt))
        raise ConflictError(
            f"the policy of {_describe(name)} changes faster than it can be replaced", hint="try again in a minute"
        )

    def _replace_policy(self, name: str, policy: Mapping[str, Any], user_project: str | None) -> bool:
        """Replace a policy; False if it has changed since it was read."""
        request = self._build("storage.v1 buckets.setIamPolicy", bucket=name, userProject=user_project, body=policy)
        with query_errors(_describe(name), "storage.buckets.setIamPolicy"):
            try:
                # The etag makes a retry harmless: the service refuses it, and the policy is read again.
                self._attempt(request, lambda _: None)
            except ApiError as error:
                if error.response.code not in _CHANGED_MEANWHILE:
                    raise
                return False
        return True

    def _read_policy(self, name: str, read: Read[T], user_project: str | None) -> T:
        return self._ask(
            "buckets.getIamPolicy",
            read,
            name,
            "storage.buckets.getIamPolicy",
            optionsRequestedPolicyVersion=_POLICY_VERSION,
            userProject=user_project,
        )

    def _ask(self, method: str, read: Read[T], bucket: str, permission: str | None, **parameters: Any) -> T:
        return self._query(f"storage.v1 {method}", read, _describe(bucket), permission, bucket=bucket, **parameters)


def _describe(name: str) -> str:
    return f"the bucket `gs://{name}`"


def _checked_policy(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a policy as it is, with the fields that tpuctl does not read. Raises `ShapeError`."""
    decode(IamPolicy, data)
    return data


def _with_member(policy: Mapping[str, Any], role: str, member: str) -> dict[str, Any] | None:
    """Return the policy with the member added; None if the member already has the role without a condition."""
    bindings = [dict(binding) for binding in policy.get("bindings") or ()]
    same = [binding for binding in bindings if binding.get("role") == role and not binding.get("condition")]
    if any(member in (binding.get("members") or ()) for binding in same):
        return None
    if same:
        same[0]["members"] = [*(same[0].get("members") or ()), member]
    else:
        bindings.append({"role": role, "members": [member]})
    return {**policy, "version": _POLICY_VERSION, "bindings": bindings}
