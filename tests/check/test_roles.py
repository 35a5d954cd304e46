"""The permissions on objects in the table of predefined roles [documentation of Cloud Storage]."""

from __future__ import annotations

import pytest

from tpuctl.check.iam import role_permissions

_VERBS = ("get", "list", "create", "delete")


@pytest.mark.parametrize(
    ("role", "verbs"),
    [
        ("storage.admin", "get list create delete"),
        ("storage.objectAdmin", "get list create delete"),
        ("storage.objectUser", "get list create delete"),
        ("storage.folderAdmin", "get list create delete"),
        ("storage.expressModeUserAccess", "get list create delete"),
        ("storage.objectViewer", "get list"),
        ("storage.objectCreator", "create"),
        ("storage.legacyBucketOwner", "list create delete"),
        ("storage.legacyBucketWriter", "list create delete"),
        ("storage.legacyBucketReader", "list"),
        ("storage.legacyObjectOwner", "get"),
        ("storage.legacyObjectReader", "get"),
        ("storage.editor", ""),
        ("storage.viewer", ""),
        ("storage.bucketViewer", ""),
        ("owner", ""),
        ("editor", ""),
        ("viewer", ""),
        ("tpu.admin", ""),
    ],
)
def test_role_table_has_expected_permissions(role: str, verbs: str) -> None:
    found = role_permissions(f"roles/{role}")

    assert found is not None
    assert found & {f"storage.objects.{verb}" for verb in _VERBS} == {
        f"storage.objects.{verb}" for verb in verbs.split()
    }


@pytest.mark.parametrize("role", ["roles/made.up", "projects/p/roles/storage.admin", "storage.admin"])
def test_role_missing_in_table_is_none(role: str) -> None:
    assert role_permissions(role) is None
