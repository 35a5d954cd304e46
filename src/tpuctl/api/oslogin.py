"""A client of OS Login: the POSIX accounts and public keys of a Google account. Raises tpuctl's exceptions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from tpuctl.api.calls import Api, PlainRequest
from tpuctl.api.client import Client
from tpuctl.api.errors import translate
from tpuctl.api.failures import RefusedError, TransportError
from tpuctl.errors import AccessError, InvalidInputError
from tpuctl.shapes import COUNT, ListOf, MapOf, Scalar, Shape, matching

if TYPE_CHECKING:
    pass

# A login enters the argv of ssh [documentation of useradd: what a POSIX account may be called].
_LOGIN = matching(r"[A-Za-z0-9_][A-Za-z0-9_.@+-]{0,255}", "the name of a POSIX account")
_MICROSECONDS = Scalar(
    "a number of microseconds", lambda value: COUNT.accepts(value) and int(value) < 10**17, "integer"
)
_KEY = Shape("oslogin.v1 SshPublicKey", {"fingerprint": str, "key": str, "expirationTimeUsec": _MICROSECONDS})
_PROFILE = Shape(
    "oslogin.v1 LoginProfile",
    {
        "posixAccounts": ListOf(Shape("oslogin.v1 PosixAccount", {"username": _LOGIN, "primary": bool})),
        "sshPublicKeys": MapOf(_KEY),
    },
)
_IMPORTED = Shape("oslogin.v1 ImportSshPublicKeyResponse", {"loginProfile": _PROFILE}, required=("loginProfile",))
_USER = Shape("oauth2.v2 Userinfo", {"email": str})
_ACCOUNT = re.compile(r"[^\s/?#%]+")
_USER_INFO = "https://openidconnect.googleapis.com/v1/userinfo"
# What `diagnosis` calls a missing permission; its advice is about TPUs.
_PERMISSION_DENIED = "iam-permission-denied"


@dataclass(frozen=True, slots=True)
class LoginKey:
    """A public key of a profile. `expires` is None if it does not expire."""

    fingerprint: str
    public: str
    expires: datetime | None


@dataclass(frozen=True, slots=True)
class LoginProfile:
    """The POSIX names of an account, the primary one first, and its keys."""

    logins: tuple[str, ...]
    keys: tuple[LoginKey, ...]

    def key(self, public: str) -> LoginKey | None:
        """Return the key with the same type and blob, ignoring its comment; None if there is none."""
        return next((key for key in self.keys if key.public.split()[:2] == public.split()[:2]), None)


class OsLoginClient(Client):
    """Calls OS Login. An account is an e-mail address, also of a service account, or the unique id of one."""

    api = Api("oslogin", "v1")

    def profile(self, account: str, project: str) -> LoginProfile:
        """Return the profile of an account; empty if it has none."""
        request = self._users.getLoginProfile(name=_name(account), projectId=project)
        with _translated(account):
            try:
                return self._caller.attempt(request, _profile)
            except RefusedError as error:
                if error.refusal.is_not_found:
                    return LoginProfile((), ())
                raise

    def import_key(
        self, account: str, public: str, *, project: str, region: str, expires: datetime | None = None
    ) -> LoginProfile:
        """Add a public key, with or without an expiry, and return the profile, which then has a POSIX account.

        The service answers once the key is active in `region` [API field text].
        """
        body = {"key": " ".join(public.split()[:2]), **_expiry(expires)}
        request = self._users.importSshPublicKey(parent=_name(account), projectId=project, regions=[region], body=body)
        with _translated(account):
            # The service adds a repeated key once, so that a retry is harmless.
            return self._caller.attempt(request, lambda data: _profile(_IMPORTED.read(data)["loginProfile"]))

    def set_expiry(self, account: str, key: LoginKey, expires: datetime | None) -> None:
        """Change the expiry of an existing key; None removes it, which is unverified."""
        name = f"{_name(account)}/sshPublicKeys/{key.fingerprint}"
        request = self._users.sshPublicKeys().patch(name=name, updateMask="expirationTimeUsec", body=_expiry(expires))
        with _translated(account):
            self._caller.attempt(request, lambda _: None)

    def caller(self) -> str | None:
        """Return the e-mail address of the caller from Google's OpenID service; None if it does not say.

        It is unverified that it says so for every kind of token with the scope cloud-platform.
        """
        try:
            return self._caller.attempt(PlainRequest(_USER_INFO), lambda data: _USER.read(data).get("email") or None)
        except (RefusedError, TransportError):
            return None

    @property
    def _users(self) -> Any:  # googleapiclient makes its classes at run time
        return self._caller.service().users()


def _name(account: str) -> str:
    if not _ACCOUNT.fullmatch(account):
        raise InvalidInputError(
            f"`{account}` is not a valid account", hint="set it with `gcloud config set account EMAIL`"
        )
    return f"users/{account}"


def _expiry(expires: datetime | None) -> dict[str, str]:
    return {"expirationTimeUsec": str(int(expires.timestamp()) * 1_000_000)} if expires else {}


def _profile(data: Mapping[str, Any]) -> LoginProfile:
    _PROFILE.check(data)
    accounts = sorted(data.get("posixAccounts") or (), key=lambda account: not account.get("primary"))
    logins = tuple(str(account["username"]) for account in accounts if account.get("username"))
    keys: list[LoginKey] = []
    for name, key in (data.get("sshPublicKeys") or {}).items():
        micros = key.get("expirationTimeUsec")
        expires = datetime.fromtimestamp(int(micros) / 1e6, UTC) if micros else None
        keys.append(LoginKey(str(key.get("fingerprint") or name), str(key.get("key") or ""), expires))
    return LoginProfile(logins, tuple(keys))


@contextmanager
def _translated(account: str) -> Iterator[None]:
    try:
        yield
    except (TransportError, RefusedError) as failure:
        error = translate(failure)
        is_denied = isinstance(failure, RefusedError) and failure.refusal.code == 403
        if is_denied and error.error_id in {None, _PERMISSION_DENIED}:
            hint = (
                "OS Login only answers for your own account: check your identity with `tpuctl config show`\n"
                "a login needs `roles/compute.osLogin` (`roles/compute.osAdminLogin` for sudo), and "
                "`roles/iam.serviceAccountUser` on the node's service account"
            )
            raise AccessError(f"OS Login refuses `{account}`: {error.message}", hint=hint) from failure
        raise error from failure
