"""Rules about access to the cloud: credentials, tokens, the quota project, proxy, hosts, clock, project and permissions."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tpuctl.checkup.surroundings.facts import NoToken, Token
from tpuctl.clock import format_duration, format_timestamp
from tpuctl.preflight.fact import Absent, Known, Unknown, known
from tpuctl.preflight.findings import Found, Level, Remedy, SetMode, rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tpuctl.checkup.surroundings.facts import Identity, Surroundings
    from tpuctl.preflight.findings import Rule

_LOGIN = "gcloud auth application-default login"
_UNATTENDED = Remedy(
    "if no user can log in here: set `GOOGLE_APPLICATION_CREDENTIALS` to a credentials file, "
    "or use workload identity federation"
)
# Kinds of google-auth's files, in words [google-auth source: _default.py].
_KINDS = {
    "authorized_user": "the login of a user",
    "service_account": "a key of a service account",
    "external_account": "workload identity federation",
    "external_account_authorized_user": "workforce identity federation",
    "impersonated_service_account": "impersonation of a service account",
    "gdch_service_account": "a service account of Google Distributed Cloud",
}
# All APIs accept this scope [API tpu v2, auth scopes].
_WHOLE = "https://www.googleapis.com/auth/cloud-platform"
_NO_NEED = "no account is needed"


@rule("TPU921", "credentials")
def credentials(environment: Surroundings) -> Iterator[Found]:
    """Check the credentials that tpuctl uses.

    These are `GOOGLE_APPLICATION_CREDENTIALS`, application default credentials, the metadata server of a machine on Google
    Cloud, and gcloud's login. An error if there are none, or if the file cannot be read.
    """
    identity = environment.identity
    if not identity.needed:
        yield Found(level=Level.OK, subject="credentials", text=f"{_NO_NEED}: nothing is sent to Google")
        return
    file, token = identity.file, known(identity.token)
    match file:
        case Known(found):
            words = _KINDS.get(found.kind, f"credentials of the kind `{found.kind}`")
            of = f" of `{found.account}`" if found.account else ""
            by = f", named by `{found.source}`" if found.source else ""
            yield Found(
                level=Level.OK,
                subject="credentials",
                text=f"{words}{of} in `{found.entry.path}`{by}",
                facts={
                    "kind": found.kind,
                    "account": found.account,
                    "path": str(found.entry.path),
                    "source": found.source,
                },
            )
        case Unknown(reason):
            place = f"`{identity.named_by}` names a file that" if identity.named_by else "the credentials file"
            text = f"{place} cannot be used: {reason}"
            remedies = (_login(environment), _UNATTENDED)
            if identity.named_by:
                unset = "set the variable to a credentials file, or unset it: it overrides every other login"
                remedies = (
                    Remedy(unset, f"unset {identity.named_by}"),
                    replace(_login(environment), text="then log in"),
                )
            yield Found(level=Level.ERROR, subject="credentials", text=text, remedies=remedies)
        case _ if isinstance(token, Token):
            account = token.account or identity.gcloud_account
            text = f"no credentials file, but a login of {f'`{account}`' if account else 'this machine or of gcloud'}"
            yield Found(level=Level.OK, subject="credentials", text=text, facts={"account": account, "kind": None})
        case _ if isinstance(token, NoToken):
            account = identity.gcloud_account
            yield Found(
                level=Level.ERROR,
                subject="credentials",
                text=f"there is no credentials file, and gcloud's login of `{account}` gives no token: {token.reason}"
                if account
                else "not logged in: there are no credentials on this machine",
                why="no call to the cloud can be made; only what needs no account was checked",
                remedies=(_login(environment), _UNATTENDED),
                facts={"account": account, "kind": None, "looked": token.reason},
            )
        case _:
            reason = identity.token.reason if isinstance(identity.token, (Unknown, Absent)) else "it was not requested"
            text = (
                f"there is no credentials file, and it is unknown whether this machine or gcloud has a login: {reason}"
            )
            helps = (_login(environment),) if isinstance(identity.token, Unknown) and identity.token.is_passing else ()
            yield Found(level=Level.UNKNOWN, subject="credentials", text=text, remedies=helps, is_passing=True)


@rule("TPU922", "permissions of the credentials file")
def guarded(environment: Surroundings) -> Iterator[Found]:
    """Check that only you may read the credentials file, since its content suffices to act as you; else a warning."""
    found = known(environment.identity.file)
    if found is None:
        return
    entry, subject = found.entry, str(found.entry.path)
    facts = {"path": subject, "mode": entry.octal}
    if not entry.is_open():
        yield Found(level=Level.OK, subject=subject, text="only you may read it", facts=facts)
        return
    remedy = Remedy.by(SetMode(subject, 0o600), "restrict it to your user")
    text = f"other users may read the credentials (mode {entry.octal})"
    why = "a user who reads them can act as you"
    yield Found(level=Level.WARNING, subject=subject, text=text, why=why, remedies=(remedy,), facts=facts)


@rule("TPU923", "the quota project")
def quota_project(environment: Surroundings) -> Iterator[Found]:
    """Check that a user's login names the quota project of its calls.

    A warning if not: some APIs then answer with SERVICE_DISABLED for a project that is not yours. Source: documentation of
    application default credentials.
    """
    identity, found = environment.identity, known(environment.identity.file)
    if found is None or found.kind != "authorized_user" or not identity.needed:
        return
    project = identity.quota_project or found.quota_project
    if project:
        text = f"calls use the quota of project `{project}`"
        yield Found(level=Level.OK, subject="credentials", text=text, facts={"quotaProject": project})
        return
    name = known(environment.cloud.project) or "PROJECT"
    yield Found(
        level=Level.WARNING,
        subject="credentials",
        text="the login names no quota project",
        why="some APIs then claim to be disabled in a project that is not yours",
        remedies=(Remedy("set one", f"gcloud auth application-default set-quota-project {name}"),),
        facts={"quotaProject": None},
    )


@rule("TPU924", "access token")
def token(environment: Surroundings) -> Iterator[Found]:
    """Fetch an access token, and ask Google for its account and scopes; it is not kept.

    An error if Google refuses (an expired login, a deleted key, a wrong clock), or if the scope `cloud-platform` is missing.
    Unknown if Google was not reached. Source: google-auth, and Google's `tokeninfo`.
    """
    identity = environment.identity
    if not identity.needed or identity.token is None:
        return
    match identity.token:
        case Known(Token() as found):
            yield _judge_token(found, identity, environment)
        case Known(NoToken() as refused) if isinstance(identity.file, Known):
            yield Found(
                level=Level.ERROR,
                subject="credentials",
                text=f"no access token: {refused.reason}",
                why="no call to the cloud can be made",
                remedies=tuple(map(Remedy, refused.advice)) or (_login(environment),),
                facts={"errorId": refused.error_id},
            )
        case Unknown(reason) if isinstance(identity.file, Known):
            text = f"it is unknown whether Google accepts the credentials: {reason}"
            remedy = Remedy("check the network and the proxy, then run `tpuctl doctor` again")
            yield Found(level=Level.UNKNOWN, subject="credentials", text=text, remedies=(remedy,), is_passing=True)
        case _:
            return


@rule("TPU925", "accounts of tpuctl and gcloud")
def accounts(environment: Surroundings) -> Iterator[Found]:
    """Compare the account of the credentials with that of gcloud; a note if `gcloud` and tpuctl act as different accounts."""
    identity = environment.identity
    ours = identity.account
    gcloud_account = identity.gcloud_account
    if not identity.needed or not ours or not gcloud_account or identity.impersonated:
        return
    if ours.lower() == gcloud_account.lower():
        text = f"tpuctl and gcloud both act as `{ours}`"
        yield Found(level=Level.OK, subject="credentials", text=text, facts={"account": ours})
        return
    yield Found(
        level=Level.NOTE,
        subject="credentials",
        text=f"tpuctl acts as `{ours}`, gcloud as `{gcloud_account}`",
        why="their permissions may differ",
        remedies=(Remedy("log in with the account of gcloud", _LOGIN),),
        facts={"account": ours, "gcloudAccount": gcloud_account},
    )


def _judge_token(found: Token, identity: Identity, environment: Surroundings) -> Found:
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
                _login(environment),
                Remedy(
                    "on a Compute Engine VM: stop it, then set the scope",
                    "gcloud compute instances set-service-account VM --scopes=cloud-platform",
                ),
            ),
            facts=facts,
        )
    left = (
        f", valid for {format_duration(found.expires - environment.now)} and renewed automatically"
        if found.expires
        else ""
    )
    text = f"access tokens are available for {who}{left}"
    return Found(level=Level.OK, subject="credentials", text=text, facts=facts)


def _login(environment: Surroundings) -> Remedy:
    if isinstance(environment.machine.gcloud, Known):
        return Remedy("log in", _LOGIN)
    return Remedy("install the Google Cloud CLI (https://cloud.google.com/sdk/docs/install), then log in", _LOGIN)


RULES: tuple[Rule[Surroundings], ...] = (credentials, guarded, quota_project, token, accounts)
