"""Objects: one generation each, replaced or deleted under exact preconditions, for any number of writers."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING
from urllib.parse import quote

from tpuctl.sandbox import paging, rendering
from tpuctl.sandbox.calls import Response
from tpuctl.sandbox.storage import checksums, refusals
from tpuctl.sandbox.storage.buckets import KIND as BUCKET
from tpuctl.sandbox.storage.buckets import opened, paged
from tpuctl.sandbox.storage.listing import Selection

if TYPE_CHECKING:
    from tpuctl.sandbox.calls import Call, Json, Media
    from tpuctl.sandbox.world import Session

KIND = "storage.object"
_LINK = "https://www.googleapis.com/storage/v1/b"
_DOWNLOAD = "https://storage.googleapis.com/download/storage/v1/b"
_LONGEST_NAME = 1024  # documentation: bytes of UTF-8
# The fields that a client may set.
_CHOSEN = (
    *("cacheControl", "contentDisposition", "contentEncoding", "contentLanguage", "contentType", "customTime"),
    *("metadata", "storageClass", "eventBasedHold", "temporaryHold"),
)


def insert(session: Session, call: Call) -> Json:
    """Answer objects.insert."""
    bucket, name = str(call.params["bucket"]), str(call.params.get("name") or call.body.get("name") or "")
    session.log_request(call.method, f"{bucket}/{name}")
    opened(session, call, "storage.objects.create")
    if call.media is None:
        raise refusals.wrong_upload_url()
    if not name:
        raise refusals.invalid("Required")  # unverified words
    if len(name.encode()) > _LONGEST_NAME:
        raise refusals.invalid("The maximum object length is 1024 characters, but got a name with more.")
    current = session.resources.get(KIND, bucket, name)
    check_preconditions(call, current)
    if current is not None:
        opened(session, call, "storage.objects.delete")  # documentation: replacing an object needs it
    calculated = checksums.md5(call.media.content)
    if call.body.get("md5Hash") not in {None, calculated}:
        raise refusals.invalid(f'Provided MD5 hash "{call.body["md5Hash"]}" doesn\'t match calculated MD5 hash.')
    given, crc32c = call.body.get("crc32c"), checksums.crc32c(call.media.content)
    if given is not None and crc32c is not None and given != crc32c:
        raise refusals.invalid(f'Provided CRC32C "{given}" doesn\'t match calculated CRC32C "{crc32c}".')
    return store(session, bucket, name, media=call.media, fields=call.body)


def store(session: Session, bucket: str, name: str, *, media: Media, fields: Json) -> Json:
    """Store an object as a new generation and return it. Raises `ApiError` 404 for a bucket that does not exist."""
    found = session.resources.find(BUCKET, bucket)
    if found is None:
        raise refusals.no_bucket()
    current = session.resources.get(KIND, bucket, name)
    moment = int(session.now.timestamp() * 1_000_000)
    # Greater than every earlier one, even if the clock stands still, and not reused after a delete.
    generation = max(moment, int(session.setting("storage.generation", 0)) + 1)
    session.set_setting("storage.generation", generation)
    now = rendering.milliseconds(session.now)
    document: Json = {
        "kind": "storage#object",
        "id": f"{bucket}/{name}/{generation}",
        "selfLink": f"{_LINK}/{bucket}/o/{quote(name, safe='')}",
        "mediaLink": f"{_DOWNLOAD}/{bucket}/o/{quote(name, safe='')}?generation={generation}&alt=media",
        "name": name,
        "bucket": bucket,
        "generation": str(generation),
        "metageneration": "1",
        "contentType": media.content_type or "application/octet-stream",
        "storageClass": found.document["document"].get("storageClass", "STANDARD"),
        "size": str(len(media.content)),
        "md5Hash": checksums.md5(media.content),
        "etag": base64.b64encode(generation.to_bytes(8, "big")).decode(),
        **dict.fromkeys(("timeCreated", "updated", "timeFinalized", "timeStorageClassUpdated"), now),
        **{field: fields[field] for field in _CHOSEN if fields.get(field) is not None},
    }
    if checksum := checksums.crc32c(media.content):
        document["crc32c"] = checksum
    if current is not None:
        session.resources.delete_content(key(bucket, current))
    session.resources.put(KIND, bucket, name, document)
    session.resources.put_content(key(bucket, document), media.content)
    return document


def get(session: Session, call: Call) -> Json | Response:
    """Answer objects.get with the object's JSON, or with its bytes for `alt=media`."""
    opened(session, call, "storage.objects.get")
    bucket, name = str(call.params["bucket"]), str(call.params["object"])
    document = named(session, call)
    check_preconditions(call, document)
    if document is None:
        raise refusals.no_object(bucket, name)
    if not call.wants_media:
        return document
    hashes = ",".join(
        f"{kind}={document[key]}" for kind, key in (("crc32c", "crc32c"), ("md5", "md5Hash")) if key in document
    )
    headers = {
        "content-type": document["contentType"],
        "etag": document["etag"],
        "x-goog-generation": document["generation"],
        "x-goog-metageneration": document["metageneration"],
        "x-goog-hash": hashes,
        "x-goog-stored-content-length": document["size"],
        "x-goog-stored-content-encoding": document.get("contentEncoding", "identity"),
    }
    return Response(200, session.resources.content(key(bucket, document)), headers)


def list_(session: Session, call: Call) -> Json:
    """Answer objects.list. `versions` and `softDeleted` add nothing: replaced and deleted objects are gone."""
    opened(session, call, "storage.objects.list")
    bucket, params = str(call.params["bucket"]), call.params
    selection = Selection(
        prefix=str(params.get("prefix") or ""),
        delimiter=str(params.get("delimiter") or ""),
        start=str(params.get("startOffset") or ""),
        end=str(params.get("endOffset") or ""),
        glob=str(params.get("matchGlob") or ""),
        shows_marker=bool(params.get("includeTrailingDelimiter")),
    )
    found: dict[str, Json] = {}
    if not params.get("softDeleted"):
        entries_found = session.resources.list_records(KIND, bucket, prefix=selection.prefix)
        found = {entry.name: entry.document for entry in entries_found}
    after = paging.position(call)
    entries = [entry for entry in selection.grouped(found) if not after or entry > (after[0], after[-1] == "prefix")]
    size = paging.size(paged(call))
    shown = entries[:size]
    answer: Json = {"kind": "storage#objects"}
    if prefixes := [name for name, is_prefix in shown if is_prefix]:
        answer["prefixes"] = prefixes
    if items := [found[name] for name, is_prefix in shown if not is_prefix]:
        answer["items"] = items
    if len(entries) > size:
        answer["nextPageToken"] = paging.token(shown[-1][0], "prefix" if shown[-1][1] else "object")
    return answer


def delete(session: Session, call: Call) -> Json | Response:
    """Answer objects.delete: 204 without a body."""
    bucket, name = str(call.params["bucket"]), str(call.params["object"])
    session.log_request(call.method, f"{bucket}/{name}")
    opened(session, call, "storage.objects.delete")
    document = named(session, call)
    check_preconditions(call, document)
    if document is None:
        raise refusals.no_object(bucket, name)
    session.resources.delete(KIND, bucket, name)
    session.resources.delete_content(key(bucket, document))
    return Response(204, b"")


def check_preconditions(call: Call, current: Json | None) -> None:
    """Raise `ApiError` 412 unless a call's preconditions hold; a missing object has generation 0.

    A read of an unchanged object (`ifGenerationNotMatch`) is a 304 (documentation).
    """
    for field in ("generation", "metageneration"):
        present = int(current[field]) if current else 0
        parameter = f"if{field.capitalize()}"
        wanted, unwanted = call.params.get(f"{parameter}Match"), call.params.get(f"{parameter}NotMatch")
        if wanted is not None and int(wanted) != present:
            raise refusals.condition_not_met()
        if unwanted is not None and int(unwanted) == present:
            raise refusals.not_modified() if call.method == "storage.objects.get" else refusals.condition_not_met()


def named(session: Session, call: Call) -> Json | None:
    """Return the object of a call. None if it, or the requested generation, does not exist."""
    found = session.resources.get(KIND, str(call.params["bucket"]), str(call.params["object"]))
    wanted = call.params.get("generation")
    return None if found is None or (wanted and str(wanted) != found["generation"]) else found


def key(bucket: str, document: Json) -> str:
    """Return the name under which the bytes of an object are stored."""
    return f"{bucket}/{document['name']}#{document['generation']}"
