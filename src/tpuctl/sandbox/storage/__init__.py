"""Cloud Storage, JSON API v1: buckets with their policies and caches, and objects with their contents.

Objects are not versioned, and what was deleted is gone: no soft delete.
"""

from tpuctl.sandbox.storage.bucket_changes import insert as insert_bucket
from tpuctl.sandbox.storage.bucket_changes import patch as patch_bucket
from tpuctl.sandbox.storage.buckets import get as get_bucket
from tpuctl.sandbox.storage.buckets import get_layout
from tpuctl.sandbox.storage.buckets import list_ as list_buckets
from tpuctl.sandbox.storage.caches import get as get_cache
from tpuctl.sandbox.storage.caches import insert as insert_cache
from tpuctl.sandbox.storage.caches import list_ as list_caches
from tpuctl.sandbox.storage.copies import rewrite as rewrite_object
from tpuctl.sandbox.storage.object_changes import patch as patch_object
from tpuctl.sandbox.storage.object_changes import update as update_object
from tpuctl.sandbox.storage.objects import delete as delete_object
from tpuctl.sandbox.storage.objects import get as get_object
from tpuctl.sandbox.storage.objects import insert as insert_object
from tpuctl.sandbox.storage.objects import list_ as list_objects
from tpuctl.sandbox.storage.policies import get_iam_policy, set_iam_policy, test_iam_permissions

__all__ = [
    "delete_object",
    "get_bucket",
    "get_cache",
    "get_iam_policy",
    "get_layout",
    "get_object",
    "insert_bucket",
    "insert_cache",
    "insert_object",
    "list_buckets",
    "list_caches",
    "list_objects",
    "patch_bucket",
    "patch_object",
    "rewrite_object",
    "set_iam_policy",
    "test_iam_permissions",
    "update_object",
]
