"""Read the configuration of buckets: location, IAM policy, contents. Raises tpuctl's exceptions.

Objects are read and written by `storage.py`. Google's library is not used here: it would only build one URL for each request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from tpuctl.api.calls import Api, PlainRequest
from tpuctl.api.client import Client
from tpuctl.api.failures import RefusedError
from tpuctl.api.listing import all_pages
from tpuctl.api.refusals import about
from tpuctl.api.retry import SHORT_PATIENCE, backoff
from tpuctl.errors import ConflictError
from tpuctl.model.bucket import AnywhereCache, Bucket, Contents, Placement
from tpuctl.model.iam import PERMISSIONS, POLICY, IamPolicy
from tpuctl.shapes import COUNT, Page, Shape

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_PAGE_SIZE = 1000
_CACHES = Page("storage.v1 AnywhereCaches", "items")
_OBJECTS = Page("storage.v1 Objects", "items")
_OBJECT = Shape("storage.v1 Object", {"name": str, "size": COUNT}, required=("name",))
# A policy that is changed all the time may have to be read and written so often.
_GRANTS = 6
_CHANGED_MEANWHILE = frozenset({409, 412})
# Policies with conditions have this version; asked for less, the service refuses to show such a one [API field text].
_POLICY_VERSION = 3


class BucketsClient(Client):
    """Calls Cloud Storage. `user_project` is billed for requests to requester-pays buckets.

    Without it, such a bucket raises `InvalidRequestError` with the `error_id` `storage-requester-pays`.
    """

    api = Api("storage", "v1", "storage/v1/")
    patience = SHORT_PATIENCE

    def bucket(self, name: str, *, user_project: str | None = None) -> Bucket:
        """Return a bucket's metadata; needs storage.buckets.get."""
        request = self._request(name, query={"userProject": user_project})
        with about(_words(name), "storage.buckets.get"):
            return self._caller.attempt(request, Bucket.from_api)

    def layout(self, name: str, *, user_project: str | None = None) -> Placement:
        """Return the location of a bucket; needs storage.objects.list only [API storage v1, method text]."""
        # The method has no parameter for the billed project, so a header is used [API storage v1].
        request = self._request(name, "/storageLayout").paid_by(user_project)
        with about(_words(name), "storage.objects.list"):
            return self._caller.attempt(request, Placement.from_api)

    def policy(self, name: str, *, user_project: str | None = None) -> IamPolicy:
        """Return the IAM policy with its conditions; needs storage.buckets.getIamPolicy."""
        with about(_words(name), "storage.buckets.getIamPolicy"):
            return self._caller.attempt(self._policy_request(name, user_project), IamPolicy.from_api)

    def test_permissions(
        self, name: str, permissions: Collection[str], *, user_project: str | None = None
    ) -> frozenset[str]:
        """Return which of the permissions the caller has; needs none."""
        query = {"permissions": sorted(permissions), "userProject": user_project}
        request = self._request(name, "/iam/testPermissions", query=query)
        with about(_words(name), None):
            return self._caller.attempt(
                request, lambda data: frozenset(PERMISSIONS.read(data).get("permissions") or ())
            )

    def contents(self, name: str, prefix: str, *, user_project: str | None = None) -> Contents:
        """Count the first thousand objects below a prefix; needs storage.objects.list.

        A folder marker, which is empty and ends with a slash, is not counted.
        """
        query = {
            "prefix": prefix or None,
            "maxResults": _PAGE_SIZE,
            "fields": "items(name,size),nextPageToken",
            "userProject": user_project,
        }

        def read(data: Mapping[str, Any]) -> Contents:
            _OBJECTS.check(data)
            items = _OBJECTS.items(data, lambda item: (str(_OBJECT.read(item)["name"]), int(item.get("size") or 0)))
            sizes = [size for name, size in items if size or not name.endswith("/")]
            return Contents(len(sizes), sum(sizes), not data.get("nextPageToken"))

        with about(_words(name), "storage.objects.list"):
            return self._caller.attempt(self._request(name, "/o", query=query), read)

    def caches(self, name: str, *, user_project: str | None = None) -> tuple[AnywhereCache, ...]:
        """Return the Anywhere Caches; needs storage.anywhereCaches.list."""

        def page(token: str | None) -> PlainRequest:
            query = {"pageSize": _PAGE_SIZE, "pageToken": token}
            # See `layout`.
            return self._request(name, "/anywhereCaches", query=query).paid_by(user_project)

        with about(_words(name), "storage.anywhereCaches.list"):
            return all_pages(self._caller, page, _CACHES, AnywhereCache.from_api).items

    def grant(self, name: str, role: str, member: str, *, user_project: str | None = None) -> None:
        """Add one member to one role. Other changes of the policy are kept, even simultaneous ones.

        An unconditional binding of the member stays unchanged. Raises `ConflictError` after six simultaneous changes.
        """
        for attempt in range(1, _GRANTS + 1):
            with about(_words(name), "storage.buckets.getIamPolicy"):
                policy = self._caller.attempt(self._policy_request(name, user_project), POLICY.read)
            wanted = _with_member(policy, role, member)
            if wanted is None or self._replace_policy(name, wanted, user_project):
                return
            self._caller.clock.sleep(backoff(self._caller.policy, attempt, self._caller.random))
        raise ConflictError(
            f"the policy of {_words(name)} changes faster than it can be replaced", hint="try again in a minute"
        )

    def _replace_policy(self, name: str, policy: Mapping[str, Any], user_project: str | None) -> bool:
        """Replace a policy; False if it has changed since it was read."""
        request = self._request(name, "/iam", method="PUT", query={"userProject": user_project}, body=policy)
        with about(_words(name), "storage.buckets.setIamPolicy"):
            try:
                # The etag makes a retry harmless: the service refuses it, and the policy is read again.
                self._caller.attempt(request, lambda _: None)
            except RefusedError as error:
                if error.refusal.code not in _CHANGED_MEANWHILE:
                    raise
                return False
        return True

    def _policy_request(self, name: str, user_project: str | None) -> PlainRequest:
        query = {"optionsRequestedPolicyVersion": _POLICY_VERSION, "userProject": user_project}
        return self._request(name, "/iam", query=query)

    def _request(
        self,
        name: str,
        path: str = "",
        *,
        method: str = "GET",
        query: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> PlainRequest:
        url = self._url(f"{self.api.path}b/{quote(name, safe='')}{path}")
        return PlainRequest.of(url, method=method, query=query, body=body)


def _words(name: str) -> str:
    return f"the bucket `gs://{name}`"


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
