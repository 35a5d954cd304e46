"""Read and replace small objects in Cloud Storage, with generations as preconditions.

This is for records that several machines share, not for data sets: an object is kept in memory. Thread-safe. Raises
tpuctl's exceptions, as `api/tpu.py` does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from tpuctl.api.calls import Api, read_json
from tpuctl.api.client import Client
from tpuctl.api.errors import translate
from tpuctl.api.failures import GarbledAnswerError, RefusedError, TransportError
from tpuctl.api.headers import parse_date
from tpuctl.api.listing import MOST_PAGES
from tpuctl.api.outcome import is_uncertain
from tpuctl.api.retry import backoff
from tpuctl.clock import GRACE, PATIENCE, SystemClock, limit_calls, parse_timestamp
from tpuctl.errors import (
    AccessError,
    NotFoundError,
    OutcomeUnknownError,
    PreconditionFailedError,
    ServiceUnavailableError,
    TpuctlError,
)
from tpuctl.shapes import COUNT, TIME, Page, Scalar, Shape

if TYPE_CHECKING:
    pass

# An object is held in memory.
_SIZE = Scalar("at most 64 MiB", lambda value: COUNT.accepts(value) and int(value) <= 64 << 20, "integer")
_OBJECT = Shape("storage.v1 Object", {"generation": COUNT, "updated": TIME, "size": _SIZE}, required=("generation",))
_OBJECTS = Page("storage.v1 Objects", "items")
_NAMED = Shape("storage.v1 Object", {"name": str}, required=("name",))
_CONTENT_TYPE = "application/octet-stream"
# An object that is replaced all the time may be gone, in the generation that was asked for, so many times in a row.
_READS = 5
# A write whose answer was lost is sent at most so often in all.
_SENDS = 3
# One object may be written once per second, with short bursts [documentation of quotas].
_BREATH = timedelta(seconds=1)
# What `diagnosis` calls a missing permission; its advice is about TPUs.
_PERMISSION_DENIED = "iam-permission-denied"


@dataclass(frozen=True, slots=True)
class Blob:
    """One stored version of an object."""

    content: bytes
    # It increases with every write, and is never used again, not even after a delete [API field text].
    generation: int
    # The time since the write, by the clock of the service (`Date` of the answer less `updated` of the object), in whole
    # seconds, never negative. The clocks of machines do not matter.
    age: timedelta


class StorageClient(Client):
    """Calls Cloud Storage."""

    api = Api("storage", "v1", "storage/v1/")

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
                        self._caller.attempt(self._objects.list(bucket=bucket, prefix=name, maxResults=1), _names)
                    return None
                generation, age = head
                content = self._content(bucket, name, generation)
                if content is not None:
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
        from googleapiclient.http import MediaInMemoryUpload  # noqa: PLC0415  # loaded with the library, 130 ms

        request = self._objects.insert(
            bucket=bucket,
            name=name,
            ifGenerationMatch=_text(generation),
            media_body=MediaInMemoryUpload(content, mimetype=_CONTENT_TYPE, resumable=False),
            media_mime_type=_CONTENT_TYPE,
        )
        if self._own_endpoint:
            # The library sends uploads to Google's host, or over https, and ignores the endpoint.
            request.uri = self._own_endpoint.url("upload/") + request.uri.partition("/upload/")[2]
        failure: RefusedError | TransportError
        with limit_calls(SystemClock(), PATIENCE, grace=GRACE), _translated(bucket, name, "storage.objects.create"):
            for sent in range(1, _SENDS + 1):
                try:
                    # Without a precondition the last writer wins anyway: a retry is harmless.
                    return self._caller.attempt(request, _generation, is_safe=generation is None)
                except (RefusedError, TransportError) as error:
                    # The refusal of a repeated write may mean that the first was carried out.
                    if generation is None or (sent == 1 and not _may_repeat(error)):
                        raise
                    failure = error
                try:
                    found = self.read(bucket, name)
                except NotFoundError:
                    raise
                except TpuctlError as error:
                    raise _unknown(bucket, name, failure) from error
                if found is not None and found.generation != generation and found.content == content:
                    return found.generation
                if (found.generation if found else 0) != generation:
                    raise _precondition_failed(bucket, name) from failure
                if not _may_repeat(failure) or (sent == _SENDS and not is_uncertain(failure)):
                    raise failure
                self._caller.clock.sleep(_BREATH + backoff(self._caller.policy, sent, self._caller.random))
        raise _unknown(bucket, name, failure) from failure

    def delete(self, bucket: str, name: str, *, generation: int | None) -> None:
        """Delete the object of that generation, or of any with None; succeeds if it is gone.

        Raises `PreconditionFailedError` if another version is there.
        """
        request = self._objects.delete(bucket=bucket, object=name, ifGenerationMatch=_text(generation))
        with _translated(bucket, name, "storage.objects.delete"):
            try:
                self._caller.exchange(request, lambda *_: None)
            except RefusedError as error:
                if error.refusal.is_not_found:
                    return
                # The service may check the precondition before it checks whether the object exists.
                if error.refusal.code != 412 or self._head(bucket, name) is not None:
                    raise

    def list(self, bucket: str, prefix: str) -> Iterator[str]:
        """Return the names of the objects that begin with `prefix`, in the service's order."""
        found: list[str] = []
        token: str | None = None
        tokens: set[str] = set()
        with limit_calls(SystemClock(), PATIENCE), _translated(bucket, prefix, "storage.objects.list"):
            while True:
                request = self._objects.list(bucket=bucket, prefix=prefix, pageToken=token)
                names, token = self._caller.attempt(request, _names)
                found += names
                if not token:
                    return iter(found)
                if token in tokens or len(tokens) >= MOST_PAGES:
                    raise ServiceUnavailableError(
                        f"the list of `gs://{bucket}/{prefix}` never ends", hint="check the endpoint and the prefix"
                    )
                tokens.add(token)

    @property
    def _objects(self) -> Any:
        return self._caller.service().objects()

    def _head(self, bucket: str, name: str) -> tuple[int, timedelta] | None:
        """Return generation and age; None if the object or the bucket is absent."""

        def read(headers: Mapping[str, str], content: bytes) -> tuple[int, timedelta]:
            generation, updated = read_json(content, lambda data: (_generation(data), data.get("updated")))
            written = parse_timestamp(updated)
            if written is None:
                raise GarbledAnswerError(f"an object was updated at `{updated}`")
            now = parse_date(headers.get("date"))
            if now is None:
                # With the clock of this machine, the lease of another holder could expire too early.
                raise GarbledAnswerError("the answer does not contain the service's time")
            return generation, max(now - written, timedelta())

        request = self._objects.get(bucket=bucket, object=name)
        try:
            return self._caller.exchange(request, read)
        except RefusedError as error:
            if error.refusal.is_not_found:
                return None
            raise

    def _content(self, bucket: str, name: str, generation: int) -> bytes | None:
        """Return the bytes of one version; None if it was replaced or deleted meanwhile."""
        request = self._objects.get_media(bucket=bucket, object=name, generation=str(generation))
        try:
            return self._caller.exchange(request, lambda _, content: content)
        except RefusedError as error:
            if error.refusal.is_not_found:
                return None
            raise


def _may_repeat(failure: TransportError | RefusedError) -> bool:
    """Return whether to read the object and retry a write: its outcome is uncertain, or it came too soon after another."""
    is_too_soon = isinstance(failure, RefusedError) and failure.refusal.code == 429
    return is_too_soon or is_uncertain(failure)


@contextmanager
def _translated(bucket: str, name: str, permission: str) -> Iterator[None]:
    try:
        yield
    except (TransportError, RefusedError) as failure:
        raise _translate(failure, bucket, name, permission) from failure


def _translate(failure: TransportError | RefusedError, bucket: str, name: str, permission: str) -> TpuctlError:
    refusal = failure.refusal if isinstance(failure, RefusedError) else None
    if refusal is not None and refusal.is_not_found:
        hint = f"create it with `gcloud storage buckets create gs://{bucket} --location=REGION`, or check the name"
        return NotFoundError(f"there is no bucket `gs://{bucket}`", hint=hint)
    if refusal is not None and refusal.code == 412:
        return _precondition_failed(bucket, name)
    error = translate(failure)
    if refusal is not None and refusal.code == 403 and error.error_id in {None, _PERMISSION_DENIED}:
        hint = "grant `roles/storage.objectUser` on the bucket to your identity (`tpuctl config show`)"
        return AccessError(f"`{permission}` is not allowed on `gs://{bucket}`: {refusal.message}", hint=hint)
    return error


def _precondition_failed(bucket: str, name: str) -> PreconditionFailedError:
    return PreconditionFailedError(f"`gs://{bucket}/{name}` was changed by another client meanwhile", hint="try again")


def _unknown(bucket: str, name: str, failure: Exception) -> OutcomeUnknownError:
    return OutcomeUnknownError(
        f"it is unknown whether `gs://{bucket}/{name}` was written: {failure}", hint="try again in a few minutes"
    )


def _generation(data: Mapping[str, Any]) -> int:
    return int(_OBJECT.read(data)["generation"])


def _names(data: Mapping[str, Any]) -> tuple[tuple[str, ...], str | None]:
    _OBJECTS.check(data)
    return tuple(_OBJECTS.items(data, lambda item: str(_NAMED.read(item)["name"]))), data.get("nextPageToken")


def _text(generation: int | None) -> str | None:
    return None if generation is None else str(generation)
