"""The error messages of Cloud Storage."""

from __future__ import annotations

from tpuctl.sandbox.calls import ApiError

CALLER = "user@example.com"


def no_bucket() -> ApiError:
    """Return the error for a missing bucket (words unverified)."""
    return ApiError(404, "NOT_FOUND", "The specified bucket does not exist.")


def taken(*, is_own: bool) -> ApiError:
    """Return the error for a bucket name in use (observed: substratusai/runbooks#31, users of gcloud)."""
    if is_own:
        message = "Your previous request to create the named bucket succeeded and you already own it."
    else:
        message = (
            "The requested bucket name is not available. The bucket namespace is shared by all users of the system. Please "
            "select a different name and try again."
        )
    return ApiError(409, "ALREADY_EXISTS", message)


def locked(bucket: str) -> ApiError:
    """Return the error for a change of a locked retention policy (words unverified)."""
    return ApiError(403, "PERMISSION_DENIED", f"Cannot change a locked Retention Policy for bucket '{bucket}'.")


def no_object(bucket: str, name: str) -> ApiError:
    """Return the error for a missing object (words unverified)."""
    return ApiError(404, "NOT_FOUND", f"No such object: {bucket}/{name}")


def no_cache() -> ApiError:
    """Return the error for a missing Anywhere Cache (words unverified)."""
    return ApiError(404, "NOT_FOUND", "The specified Anywhere Cache does not exist.")


def cache_exists() -> ApiError:
    """Return the error for a second Anywhere Cache in a zone (words unverified)."""
    return ApiError(409, "ALREADY_EXISTS", "The bucket already has an Anywhere Cache in this zone.")


def forbidden(permission: str) -> ApiError:
    """Return the error for a missing permission (observed: ansible-collections/google.cloud#575)."""
    resource = "object" if permission.startswith("storage.objects.") and permission[-5:] != ".list" else "bucket"
    message = (
        f"{CALLER} does not have {permission} access to the Google Cloud Storage {resource}. "
        f"Permission '{permission}' denied on resource (or it may not exist)."
    )
    return ApiError(403, "PERMISSION_DENIED", message)


def condition_not_met() -> ApiError:
    """Return the error for a failed precondition (words unverified)."""
    message = "At least one of the pre-conditions you specified did not hold."
    return ApiError(412, "FAILED_PRECONDITION", message)


def requester_pays() -> ApiError:
    """Return the error for a request without a project to bill (observed: laravel-google-cloud-storage#44)."""
    message = "Bucket is requester pays bucket but no user project provided."
    return ApiError(400, "INVALID_ARGUMENT", message, reason="required")


def invalid_user_project() -> ApiError:
    """Return the error for a project to bill that does not exist (observed: googleapis/java-storage#42)."""
    return ApiError(400, "INVALID_ARGUMENT", "User project specified in the request is invalid.", reason="invalid")


def may_not_bill() -> ApiError:
    """Return the error for a project that the caller may not bill (observed: cyberduck#13745)."""
    message = f"{CALLER} does not have serviceusage.services.use access to the Google Cloud project."
    return ApiError(403, "PERMISSION_DENIED", message)


def unknown_project(project: str) -> ApiError:
    """Return the error for a list of a project that does not exist (observed: replicate/keepsake#275)."""
    return ApiError(400, "INVALID_ARGUMENT", f"Unknown project id: {project}", reason="invalid")


def billing_disabled() -> ApiError:
    """Return the error for resources of a project without billing (words unverified)."""
    message = "The billing account for the owning project is disabled in state absent"
    return ApiError(403, "PERMISSION_DENIED", message, reason="accountDisabled")


def invalid(message: str) -> ApiError:
    """Return the error for an invalid parameter (words unverified)."""
    return ApiError(400, "INVALID_ARGUMENT", message, reason="invalid")


def wrong_upload_url() -> ApiError:
    """Return the error for an insert that is not an upload (words unverified)."""
    message = "Upload requests must include an uploadType URL parameter and a URL path beginning with /upload/"
    return ApiError(400, "INVALID_ARGUMENT", message, reason="wrongUrlForUpload")


def not_modified() -> ApiError:
    """Return the response to a conditional read of an unchanged object."""
    return ApiError(304, "NOT_MODIFIED", "")
