"""Whose name calls are made in: where the credentials are, whether they are taken, and who pays for what they ask."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tpuctl.checkup.surroundings.facts import NoToken, Token
from tpuctl.clock import format_duration, format_timestamp
from tpuctl.preflight.fact import Absent, Known, Unknown, known
from tpuctl.preflight.findings import Found, Level, Remedy, SetMode, rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpuctl.checkup.surroundings.facts import CredentialFile, Identity, Surroundings
    from tpuctl.preflight.findings import Rule

_LOGIN = "gcloud auth application-default login"
_UNATTENDED = Remedy(
    "where nobody can log in: point `GOOGLE_APPLICATION_CREDENTIALS` at a file of credentials, "
    "or use workload identity federation"
)
# Kinds of google-auth's files, in words [google-auth source: _default.py].
_KINDS = {
    "authorized_user": "a user's login",
    "service_account": "a key of a service account",
    "external_account": "workload identity federation",
    "external_account_authorized_user": "workforce identity federation",
    "impersonated_service_account": "a service account that a login acts as",
    "gdch_service_account": "a service account of Google Distributed Cloud",
}
# Either lets the Cloud TPU API be called [API tpu v2, auth scopes]; Compute Engine and the rest take the first.
_WHOLE = "https://www.googleapis.com/auth/cloud-platform"
_NO_NEED = "no account is needed"


@rule("TPU921", "credentials")
def credentials(seen: Surroundings) -> Iterator[Found]:
    """Look for credentials where tpuctl does.

    These are `GOOGLE_APPLICATION_CREDENTIALS`, application default credentials, the metadata server of a machine on Google
    Cloud, and gcloud's login. It is an error where there are none, or where the file cannot be read.
    """
    identity = seen.identity
    if not identity.needed:
        yield Found(level=Level.OK, subject="credentials", text=f"{_NO_NEED}: nothing is sent to Google")
        return
    file, token = identity.file, known(identity.token)
    match file:
        case Known(found):
            yield Found(level=Level.OK, subject="credentials", text=_what(found), facts=_facts(found))
        case Unknown(reason):
            place = f"`{identity.named_by}` names a file that" if identity.named_by else "the credentials file"
            text = f"{place} cannot be used: {reason}"
            remedies = (_login(seen), _UNATTENDED)
            if identity.named_by:
                unset = "let the variable name a file of credentials, or unset it: it goes before every other login"
                remedies = (Remedy(unset, f"unset {identity.named_by}"), replace(_login(seen), text="then log in"))
            yield Found(level=Level.ERROR, subject="credentials", text=text, remedies=remedies)
        case _ if isinstance(token, Token):
            account = token.account or identity.gcloud_account
            text = f"no file, but a login of {f'`{account}`' if account else 'this machine or of gcloud'}"
            yield Found(level=Level.OK, subject="credentials", text=text, facts={"account": account, "kind": None})
        case _ if isinstance(token, NoToken):
            yield _nobody(seen, token)
        case _:
            reason = identity.token.reason if isinstance(identity.token, (Unknown, Absent)) else "it was not asked for"
            text = f"there is no file of credentials, and whether this machine or gcloud has any is not known: {reason}"
            helps = (_login(seen),) if isinstance(identity.token, Unknown) and identity.token.is_passing else ()
            yield Found(level=Level.UNKNOWN, subject="credentials", text=text, remedies=helps, is_passing=True)


@rule("TPU922", "who may read the credentials")
def guarded(seen: Surroundings) -> Iterator[Found]:
    """Look whether others may read the file of credentials: it is all that is needed to act as you. That is a warning."""
    found = known(seen.identity.file)
    if found is None:
        return
    entry, subject = found.entry, str(found.entry.path)
    facts = {"path": subject, "mode": entry.octal}
    if not entry.is_open():
        yield Found(level=Level.OK, subject=subject, text="nobody else may read it", facts=facts)
        return
    remedy = Remedy.by(SetMode(subject, 0o600), "keep it for yourself")
    text = f"others may read the credentials (mode {entry.octal})"
    why = "whoever reads them can act as you"
    yield Found(level=Level.WARNING, subject=subject, text=text, why=why, remedies=(remedy,), facts=facts)


@rule("TPU923", "the quota project")
def quota_project(seen: Surroundings) -> Iterator[Found]:
    """Look whether a user's login names the project whose quota its calls use.

    Without one some APIs refuse with SERVICE_DISABLED for a project that is not yours: a warning. Source: documentation of
    application default credentials.
    """
    identity, found = seen.identity, known(seen.identity.file)
    if found is None or found.kind != "authorized_user" or not identity.needed:
        return
    project = identity.quota_project or found.quota_project
    if project:
        text = f"calls use the quota of project `{project}`"
        yield Found(level=Level.OK, subject="credentials", text=text, facts={"quotaProject": project})
        return
    name = known(seen.cloud.project) or "PROJECT"
    yield Found(
        level=Level.WARNING,
        subject="credentials",
        text="the login names no quota project",
        why="some APIs then say of a project that is not yours that they are disabled there",
        remedies=(Remedy("name one", f"gcloud auth application-default set-quota-project {name}"),),
        facts={"quotaProject": None},
    )


@rule("TPU924", "whether Google takes the credentials")
def token(seen: Surroundings) -> Iterator[Found]:
    """Fetch an access token, and ask Google for its account and scopes; it is not kept.

    It is an error where Google refuses (an expired login, a deleted key, a clock that is wrong), and where the scope
    `cloud-platform` is missing. It is unknown where Google was not reached. Source: google-auth, and Google's `tokeninfo`.
    """
    identity = seen.identity
    if not identity.needed or identity.token is None:
        return
    match identity.token:
        case Known(Token() as found):
            yield _taken(found, identity, seen)
        case Known(NoToken() as refused) if isinstance(identity.file, Known):
            yield Found(
                level=Level.ERROR,
                subject="credentials",
                text=f"no access token can be had: {refused.reason}",
                why="no call to the cloud can be made",
                remedies=tuple(map(Remedy, refused.advice)) or (_login(seen),),
                facts={"errorId": refused.error_id},
            )
        case Unknown(reason) if isinstance(identity.file, Known):
            text = f"whether Google takes the credentials is not known: {reason}"
            remedy = Remedy("check the network and the proxy, then look again")
            yield Found(level=Level.UNKNOWN, subject="credentials", text=text, remedies=(remedy,), is_passing=True)
        case _:
            return


@rule("TPU925", "one account or two")
def accounts(seen: Surroundings) -> Iterator[Found]:
    """Compare the account of the credentials with that of gcloud: `gcloud` and tpuctl may act as different ones. A note."""
    identity = seen.identity
    ours = identity.account
    theirs = identity.gcloud_account
    if not identity.needed or not ours or not theirs or identity.impersonated:
        return
    if ours.lower() == theirs.lower():
        text = f"tpuctl and gcloud both act as `{ours}`"
        yield Found(level=Level.OK, subject="credentials", text=text, facts={"account": ours})
        return
    yield Found(
        level=Level.NOTE,
        subject="credentials",
        text=f"tpuctl acts as `{ours}`, gcloud as `{theirs}`",
        why="what one may do the other perhaps may not",
        remedies=(Remedy("log tpuctl in with gcloud's account", _LOGIN),),
        facts={"account": ours, "gcloudAccount": theirs},
    )


def _nobody(seen: Surroundings, token_: NoToken) -> Found:
    account = seen.identity.gcloud_account
    return Found(
        level=Level.ERROR,
        subject="credentials",
        text=f"there is no file of credentials, and gcloud's login of `{account}` gives no token: {token_.reason}"
        if account
        else "nobody is logged in: there are no credentials on this machine",
        why="no call to the cloud can be made; what needs no account was looked at all the same",
        remedies=(_login(seen), _UNATTENDED),
        facts={"account": account, "kind": None, "looked": token_.reason},
    )


def _taken(found: Token, identity: Identity, seen: Surroundings) -> Found:
    account = identity.account
    who = f"`{account}`" if account else "an account that Google does not name"
    who += (
        f", impersonating `{identity.impersonated}`"
        if identity.impersonated and identity.impersonated != account
        else ""
    )
    facts = {
        "account": account,
        "impersonated": identity.impersonated,
        "scopes": sorted(found.scopes) if found.scopes is not None else None,
        "expires": format_timestamp(found.expires) if found.expires else None,
    }
    if found.scopes is not None and _WHOLE not in found.scopes:
        return Found(
            level=Level.ERROR,
            subject="credentials",
            text=f"the credentials of {who} lack the scope `cloud-platform`",
            why="APIs answer with ACCESS_TOKEN_SCOPE_INSUFFICIENT",
            remedies=(
                _login(seen),
                Remedy(
                    "on a Compute Engine VM stop it first, and give it the scope",
                    "gcloud compute instances set-service-account VM --scopes=cloud-platform",
                ),
            ),
            facts=facts,
        )
    left = f", good for {format_duration(found.expires - seen.now)}; it renews itself" if found.expires else ""
    text = f"an access token can be had for {who}{left}"
    return Found(level=Level.OK, subject="credentials", text=text, facts=facts)


def _login(seen: Surroundings) -> Remedy:
    if isinstance(seen.machine.gcloud, Known):
        return Remedy("log in", _LOGIN)
    return Remedy("install the Google Cloud CLI (https://cloud.google.com/sdk/docs/install), then log in", _LOGIN)


def _what(found: CredentialFile) -> str:
    words = _KINDS.get(found.kind, f"credentials of the kind `{found.kind}`")
    of = f" of `{found.account}`" if found.account else ""
    by = f", named by `{found.source}`" if found.source else ""
    return f"{words}{of} in `{found.entry.path}`{by}"


def _facts(found: CredentialFile) -> dict[str, str | None]:
    return {"kind": found.kind, "account": found.account, "path": str(found.entry.path), "source": found.source}


RULES: tuple[Rule[Surroundings], ...] = (credentials, guarded, quota_project, token, accounts)
