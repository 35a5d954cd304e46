"""The queries about one bucket."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.colocation.places import relation
from tpuctl.preflight.fact import Known, Unknown
from tpuctl.preflight.facts import OBJECT_PERMISSIONS, BucketFacts

if TYPE_CHECKING:
    from tpuctl.actions.checking.asking import Asking, Question
    from tpuctl.actions.checking.sources import BucketSource
    from tpuctl.model.bucket import AnywhereCache, Bucket, Contents, Placement
    from tpuctl.model.iam import IamPolicy
    from tpuctl.preflight.wanted import BucketUse


class BucketQuestions:
    """The queries about one bucket. A query that another answer makes needless is not sent."""

    def __init__(
        self, source: BucketSource, asking: Asking, use: BucketUse, *, zone: str | None, payer: str | None
    ) -> None:
        self._source, self._asking = source, asking
        self._use, self._name, self._zone, self._payer = use, use.bucket, zone, payer

    def start(self) -> None:
        """Start the queries that depend on no answer."""
        self._bucket()
        self._policy()
        if self._use.reads:
            self._contents()

    def follow_bucket(self) -> Placement | None:
        """Wait for the bucket and start the queries that depend on it; return its location, None if unknown."""
        bucket = self._asking.answer(self._bucket())
        if isinstance(bucket, Unknown):
            self._layout()
        placement = bucket.value.placement if isinstance(bucket, Known) else None
        if self._has_use_for_caches(placement):
            self._caches()
        return placement

    def follow_policy(self) -> BucketFacts:
        """Wait for the policy and start the queries that depend on it; return the facts known so far."""
        answer = self._asking.answer
        policy = answer(self._policy())
        if isinstance(policy, Unknown):
            self._caller()
        return BucketFacts(use=self._use, bucket=answer(self._bucket()), policy=policy)

    def facts(self) -> BucketFacts:
        """Wait for all answers and return them."""
        answer = self._asking.answer
        bucket, policy = answer(self._bucket()), answer(self._policy())
        placement = bucket.value.placement if isinstance(bucket, Known) else None
        return BucketFacts(
            use=self._use,
            bucket=bucket,
            policy=policy,
            layout=answer(self._layout()) if isinstance(bucket, Unknown) else None,
            caller=answer(self._caller()) if isinstance(policy, Unknown) else None,
            contents=answer(self._contents()) if self._use.reads else None,
            caches=answer(self._caches()) if self._has_use_for_caches(placement) else None,
        )

    def _has_use_for_caches(self, placement: Placement | None) -> bool:
        return placement is not None and self._zone is not None and not relation(placement, self._zone).is_colocated

    def _bucket(self) -> Question[Bucket]:
        return self._asking.ask(
            ("bucket", self._name),
            lambda: self._source.bucket(self._name, user_project=self._payer),
            permission="storage.buckets.get",
        )

    def _policy(self) -> Question[IamPolicy]:
        return self._asking.ask(
            ("bucket policy", self._name),
            lambda: self._source.policy(self._name, user_project=self._payer),
            permission="storage.buckets.getIamPolicy",
        )

    def _contents(self) -> Question[Contents]:
        return self._asking.ask(
            ("contents", self._name, self._use.prefix),
            lambda: self._source.contents(self._name, self._use.prefix, user_project=self._payer),
            permission="storage.objects.list",
        )

    def _layout(self) -> Question[Placement]:
        return self._asking.ask(
            ("layout", self._name),
            lambda: self._source.layout(self._name, user_project=self._payer),
            permission="storage.objects.list",
        )

    def _caller(self) -> Question[frozenset[str]]:
        return self._asking.ask(
            ("caller", self._name),
            lambda: self._source.test_permissions(self._name, OBJECT_PERMISSIONS, user_project=self._payer),
        )

    def _caches(self) -> Question[tuple[AnywhereCache, ...]]:
        return self._asking.ask(
            ("caches", self._name),
            lambda: self._source.caches(self._name, user_project=self._payer),
            permission="storage.anywhereCaches.list",
        )
