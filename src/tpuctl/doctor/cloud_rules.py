"""Rules about access to the cloud: credentials, tokens, the quota project, proxy, hosts, clock, project and permissions.

The project itself (state, billing, APIs) is judged by the rules of `check`.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from tpuctl.check.facts import Absent, Known, Unknown, value_or_none
from tpuctl.check.findings import Level, Remedy, RuleResult, SetFileMode, check_rule, list_projects_command
from tpuctl.doctor.doctor_facts import AccessToken, TokenFailure
from tpuctl.durations import format_duration, format_timestamp

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tpuctl.check.facts import Fact
    from tpuctl.check.findings import CheckRule
    from tpuctl.doctor.doctor_facts import CallerIdentity, EnvironmentFacts

_LOGIN_COMMAND = "gcloud auth application-default login"
_UNATTENDED = Remedy(
    "if no user can log in here: set `GOOGLE_APPLICATION_CREDENTIALS` to a credentials file, "
    "or use workload identity federation"
)
# Kinds of google-auth's files, in words [google-auth source: _default.py].
_CREDENTIAL_KINDS = {
    "authorized_user": "the login of a user",
    "service_account": "a key of a service account",
    "external_account": "workload identity federation",
    "external_account_authorized_user": "workforce identity federation",
    "impersonated_service_account": "impersonation of a service account",
    "gdch_service_account": "a service account of Google Distributed Cloud",
}
# All APIs accept this scope [API tpu v2, auth scopes].
_CLOUD_PLATFORM_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_NO_NEED = "no account is needed"


@check_rule("TPU921", "credentials")
def check_credentials(environment: EnvironmentFacts) -> Iterator[RuleResult]:
    """Check the credentials that tpuctl uses.

    These are `GOOGLE_APPLICATION_CREDENTIALS`, application default credentials, the metadata server of a machine on Google
    Cloud, and gcloud's login. An error if there are none, or if the file cannot be read.
    """
    identity = environment.identity
    if not identity.is_needed:
        yield RuleResult(level=Level.OK, subject="credentials", text=f"{_NO_NEED}: nothing is sent to Google")
        return
    file, token = identity.file, value_or_none(identity.token)
    match file:
        case Known(found):
            words = _CREDENTIAL_KINDS.get(found.kind, f"credentials of the kind `{found.kind}`")
            of = f" of `{found.account}`" if found.account else ""
            by = f", named by `{found.source}`" if found.source else ""
            yield RuleResult(
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
            remedies = (_login_remedy(environment), _UNATTENDED)
            if identity.named_by:
                unset = "set the variable to a credentials file, or unset it: it overrides every other login"
                remedies = (
                    Remedy(unset, f"unset {identity.named_by}"),
                    replace(_login_remedy(environment), text="then log in"),
                )
            yield RuleResult(level=Level.ERROR, subject="credentials", text=text, remedies=remedies)
        case _ if isinstance(token, AccessToken):
            account = token.account or identity.gcloud_account
            text = f"no credentials file, but a login of {f'`{account}`' if account else 'this machine or of gcloud'}"
            yield RuleResult(level=Level.OK, subject="credentials", text=text, facts={"account": account, "kind": None})
        case _ if isinstance(token, TokenFailure):
            account = identity.gcloud_account
            yield RuleResult(
                level=Level.ERROR,
                subject="credentials",
                text=f"there is no credentials file, and gcloud's login of `{account}` gives no token: {token.reason}"
                if account
                else "not logged in: there are no credentials on this machine",
                why="no call to the cloud can be made; only what needs no account was checked",
                remedies=(_login_remedy(environment), _UNATTENDED),
                facts={"account": account, "kind": None, "looked": token.reason},
            )
        case _:
            reason = identity.token.reason if isinstance(identity.token, (Unknown, Absent)) else "it was not requested"
            text = (
                f"there is no credentials file, and it is unknown whether this machine or gcloud has a login: {reason}"
            )
            helps = (
                (_login_remedy(environment),)
                if isinstance(identity.token, Unknown) and identity.token.is_passing
                else ()
            )
            yield RuleResult(level=Level.UNKNOWN, subject="credentials", text=text, remedies=helps, is_passing=True)


@check_rule("TPU922", "permissions of the credentials file")
def check_credential_file_mode(environment: EnvironmentFacts) -> Iterator[RuleResult]:
    """Check that only you may read the credentials file, since its content suffices to act as you; else a warning."""
    found = value_or_none(environment.identity.file)
    if found is None:
        return
    entry, subject = found.entry, str(found.entry.path)
    facts = {"path": subject, "mode": entry.octal}
    if not entry.is_open():
        yield RuleResult(level=Level.OK, subject=subject, text="only you may read it", facts=facts)
        return
    remedy = Remedy.by(SetFileMode(subject, 0o600), "restrict it to your user")
    text = f"other users may read the credentials (mode {entry.octal})"
    why = "a user who reads them can act as you"
    yield RuleResult(level=Level.WARNING, subject=subject, text=text, why=why, remedies=(remedy,), facts=facts)


@check_rule("TPU923", "the quota project")
def check_quota_project(environment: EnvironmentFacts) -> Iterator[RuleResult]:
    """Check that a user's login names the quota project of its calls.

    A warning if not: some APIs then answer with SERVICE_DISABLED for a project that is not yours. Source: documentation of
    application default credentials.
    """
    identity, found = environment.identity, value_or_none(environment.identity.file)
    if found is None or found.kind != "authorized_user" or not identity.is_needed:
        return
    project = identity.quota_project or found.quota_project
    if project:
        text = f"calls use the quota of project `{project}`"
        yield RuleResult(level=Level.OK, subject="credentials", text=text, facts={"quotaProject": project})
        return
    name = value_or_none(environment.cloud.project) or "PROJECT"
    yield RuleResult(
        level=Level.WARNING,
        subject="credentials",
        text="the login names no quota project",
        why="some APIs then claim to be disabled in a project that is not yours",
        remedies=(Remedy("set one", f"gcloud auth application-default set-quota-project {name}"),),
        facts={"quotaProject": None},
    )


@check_rule("TPU924", "access token")
def check_access_token(environment: EnvironmentFacts) -> Iterator[RuleResult]:
    """Fetch an access token, and ask Google for its account and scopes; it is not kept.

    An error if Google refuses (an expired login, a deleted key, a wrong clock), or if the scope `cloud-platform` is missing.
    Unknown if Google was not reached. Source: google-auth, and Google's `tokeninfo`.
    """
    identity = environment.identity
    if not identity.is_needed or identity.token is None:
        return
    match identity.token:
        case Known(AccessToken() as found):
            yield _judge_token(found, identity, environment)
        case Known(TokenFailure() as refused) if isinstance(identity.file, Known):
            yield RuleResult(
                level=Level.ERROR,
                subject="credentials",
                text=f"no access token: {refused.reason}",
                why="no call to the cloud can be made",
                remedies=tuple(map(Remedy, refused.advice)) or (_login_remedy(environment),),
                facts={"errorId": refused.error_id},
            )
        case Unknown(reason) if isinstance(identity.file, Known):
            text = f"it is unknown whether Google accepts the credentials: {reason}"
            remedy = Remedy("check the network and the proxy, then run `tpuctl doctor` again")
            yield RuleResult(level=Level.UNKNOWN, subject="credentials", text=text, remedies=(remedy,), is_passing=True)
        case _:
            return


@check_rule("TPU925", "accounts of tpuctl and gcloud")
def check_accounts_agree(environment: EnvironmentFacts) -> Iterator[RuleResult]:
    """Compare the account of the credentials with that of gcloud; a note if `gcloud` and tpuctl act as different accounts."""
    identity = environment.identity
    ours = identity.account
    gcloud_account = identity.gcloud_account
    if not identity.is_needed or not ours or not gcloud_account or identity.impersonated:
        return
    if ours.lower() == gcloud_account.lower():
        text = f"tpuctl and gcloud both act as `{ours}`"
        yield RuleResult(level=Level.OK, subject="credentials", text=text, facts={"account": ours})
        return
    yield RuleResult(
        level=Level.NOTE,
        subject="credentials",
        text=f"tpuctl acts as `{ours}`, gcloud as `{gcloud_account}`",
        why="their permissions may differ",
        remedies=(Remedy("log in with the account of gcloud", _LOGIN_COMMAND),),
        facts={"account": ours, "gcloudAccount": gcloud_account},
    )


def _judge_token(found: AccessToken, identity: CallerIdentity, environment: EnvironmentFacts) -> RuleResult:
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
    if found.scopes is not None and _CLOUD_PLATFORM_SCOPE not in found.scopes:
        return RuleResult(
            level=Level.ERROR,
            subject="credentials",
            text=f"the credentials of {who} lack the scope `cloud-platform`",
            why="APIs answer with ACCESS_TOKEN_SCOPE_INSUFFICIENT",
            remedies=(
                _login_remedy(environment),
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
    return RuleResult(level=Level.OK, subject="credentials", text=text, facts=facts)


def _login_remedy(environment: EnvironmentFacts) -> Remedy:
    if isinstance(environment.machine.gcloud, Known):
        return Remedy("log in", _LOGIN_COMMAND)
    return Remedy(
        "install the Google Cloud CLI (https://cloud.google.com/sdk/docs/install), then log in", _LOGIN_COMMAND
    )


IDENTITY_RULES: tuple[CheckRule[EnvironmentFacts], ...] = (
    check_credentials,
    check_credential_file_mode,
    check_quota_project,
    check_access_token,
    check_accounts_agree,
)


_CLOCK_OFF = timedelta(seconds=60)
# A signed assertion for a token is valid for an hour, with a few minutes of tolerance [google-auth source: jwt, clock skew].
_CLOCK_FAR_OFF = timedelta(minutes=5)
_GOOGLE = ".googleapis.com"
_SYNC = Remedy("enable time synchronization", "sudo timedatectl set-ntp true")


@check_rule("TPU931", "proxy")
def check_proxy(environment: EnvironmentFacts) -> Iterator[RuleResult]:
    """Check the proxy: that of `HTTPS_PROXY` or `ALL_PROXY`, else gcloud's; and the hosts that `NO_PROXY` excludes.

    An error if its URL cannot be used: no request can be sent. A note if it is not used for Google's hosts.
    """
    network = environment.network
    source = f", from {network.proxy_source}" if network.proxy_source else ""
    facts = {"source": network.proxy_source, "bypassed": list(network.bypassed)}
    match network.proxy:
        case Unknown(reason):
            remedy = Remedy("write it like `http://HOST:PORT`, or unset it")
            text = f"the proxy cannot be used{source}: {reason}"
            why = "no request can be sent"
            yield RuleResult(level=Level.ERROR, subject="proxy", text=text, why=why, remedies=(remedy,), facts=facts)
            return
        case Known(url):
            facts |= {"proxy": url}
            bypassed = [name for name in network.bypassed if name.endswith(_GOOGLE)]
            if bypassed:
                text = f"`NO_PROXY` excludes {', '.join(bypassed)} from the proxy {url}{source}"
                why = "they cannot be reached if only the proxy has access to the internet"
                yield RuleResult(level=Level.NOTE, subject="proxy", text=text, why=why, facts=facts)
            else:
                yield RuleResult(
                    level=Level.OK, subject="proxy", text=f"requests go through {url}{source}", facts=facts
                )
        case _:
            yield RuleResult(level=Level.OK, subject="proxy", text="no proxy is set", facts=facts)
    if network.other_proxies:
        names = " and ".join(f"`{name}`" for name in network.other_proxies)
        text = f"{names} {'names' if len(network.other_proxies) == 1 else 'name'} another proxy, which is not used"
        remedy = Remedy("set them all to the same proxy, or unset the others")
        yield RuleResult(level=Level.NOTE, subject="proxy", text=text, remedies=(remedy,), facts=facts)


@check_rule("TPU932", "host names")
def check_host_names(environment: EnvironmentFacts) -> Iterator[RuleResult]:
    """Check that the names of the hosts that commands call can be resolved; a proxy resolves names itself.

    An error if one cannot be resolved, unknown if there was no result before the deadline.
    """
    asked = {host.name: host.addresses for host in environment.network.hosts if host.addresses is not None}
    for subject, fact in _group_by_reason(asked):
        problem = "the name was not resolved in time" if fact.is_passing else "the name cannot be resolved"
        yield RuleResult(
            level=Level.UNKNOWN if fact.is_passing else Level.ERROR,
            subject=subject,
            text=f"{problem}: {fact.reason}",
            remedies=(
                Remedy("check the network, and the name servers in `/etc/resolv.conf`"),
                Remedy("if only a proxy has access to the internet, set it: `HTTPS_PROXY=http://HOST:PORT`"),
            ),
            is_passing=fact.is_passing,
        )
    answered = {name: list(fact.value) for name, fact in asked.items() if isinstance(fact, Known)}
    if answered:
        text = ", ".join(f"{name} is {addresses[0] if addresses else 'known'}" for name, addresses in answered.items())
        yield RuleResult(level=Level.OK, subject="names", text=text, facts={"addresses": answered})


@check_rule("TPU933", "services answer")
def check_hosts_answer(environment: EnvironmentFacts) -> Iterator[RuleResult]:
    """Send a request without credentials to each host that commands call; any answer is fine.

    An error if no answer comes, unknown if none came before the deadline. Hosts whose name TPU932 could not resolve are left
    out. A sandbox that cannot be opened is an error, and no other cloud is called in its place.
    """
    hosts, failure = environment.network.hosts, environment.network.sandbox_failure
    if failure is not None:
        why = "commands in the sandbox fail with this error; no other cloud was called in its place"
        remedies = (*map(Remedy, failure.advice), Remedy("see other solutions", "tpuctl explain sandbox"))
        yield RuleResult(level=Level.ERROR, subject="the sandbox", text=failure.reason, why=why, remedies=remedies)
        return
    unresolved = {host.name for host in hosts if isinstance(host.addresses, Unknown) and not host.addresses.is_passing}
    for subject, fact in _group_by_reason({host.name: host.answer for host in hosts if host.name not in unresolved}):
        yield RuleResult(
            level=Level.UNKNOWN if fact.is_passing else Level.ERROR,
            subject=subject,
            text=fact.reason if fact.is_passing else f"no answer: {fact.reason}",
            remedies=_connection_remedies(fact.reason, by_proxy=isinstance(environment.network.proxy, Known)),
            is_passing=fact.is_passing,
        )
    answered = {host.name: host.answer.value for host in hosts if isinstance(host.answer, Known)}
    if answered:
        took = {name: round(answer.duration.total_seconds() * 1000) for name, answer in answered.items()}
        text = ", ".join(f"{name} answers in {milliseconds} ms" for name, milliseconds in took.items())
        yield RuleResult(level=Level.OK, subject="services", text=text, facts={"milliseconds": took})


@check_rule("TPU934", "clock")
def check_clock(environment: EnvironmentFacts) -> Iterator[RuleResult]:
    """Compare the clock of this machine with the `Date` of an answer.

    A difference of more than a minute is a warning, of more than five an error: tokens and signatures are refused
    (`invalid_grant`). A note for an endpoint on this machine, which may be a sandbox with its own clock. The time zone does not
    matter.
    """
    network, ahead = environment.network, environment.network.ahead
    if ahead is None:
        text = "the clock could not be checked: no host answered with its time"
        yield RuleResult(level=Level.UNKNOWN, subject="clock", text=text, is_passing=True)
        return
    off = abs(ahead)
    facts = {"secondsBehind": round(ahead.total_seconds()), "timeZone": network.time_zone}
    if off <= _CLOCK_OFF:
        text = (
            f"the clock is right to within {max(1, round(off.total_seconds()))} s; the time zone is {network.time_zone}"
        )
        yield RuleResult(level=Level.OK, subject="clock", text=text, facts=facts)
        return
    is_behind = ahead > timedelta()
    text = f"the clock of this machine is {format_duration(off)} {'behind' if is_behind else 'ahead'}"
    if network.is_local:
        text += (
            f"{'' if is_behind else ' of'} that of the endpoint, which is on this machine and may have its own clock"
        )
        yield RuleResult(level=Level.NOTE, subject="clock", text=text, facts=facts)
        return
    is_far = off > _CLOCK_FAR_OFF
    yield RuleResult(
        level=Level.ERROR if is_far else Level.WARNING,
        subject="clock",
        text=text,
        why=f"Google {'refuses' if is_far else 'may refuse'} tokens and signatures with a wrong time (`invalid_grant`)",
        remedies=(_SYNC,),
        facts=facts,
    )


@check_rule("TPU935", "custom CA certificates")
def check_ca_file(environment: EnvironmentFacts) -> Iterator[RuleResult]:
    """Check that the file of gcloud's `core/custom_ca_certs_file` can be read; else an error."""
    entry = environment.network.ca_file
    if entry is None:
        return
    subject = str(entry.path)
    if entry.exists and not entry.problem:
        text = "servers are verified with the CA certificates in this file"
        yield RuleResult(level=Level.OK, subject=subject, text=text)
        return
    text = f"the CA certificates cannot be read: {entry.problem or 'there is no such file'}"
    unset = Remedy("set an existing file, or unset it", "gcloud config unset core/custom_ca_certs_file")
    yield RuleResult(level=Level.ERROR, subject=subject, text=text, why="no server can be verified", remedies=(unset,))


def _group_by_reason(facts: Mapping[str, Fact[Any]]) -> Iterator[tuple[str, Unknown]]:
    """Yield each reason once, with the hosts that it applies to."""
    found: dict[Unknown, list[str]] = {}
    for name, fact in facts.items():
        if isinstance(fact, Known):
            continue
        gap = fact if isinstance(fact, Unknown) else Unknown(fact.reason)
        found.setdefault(replace(gap, reason=gap.reason.removeprefix(f"{name} ")), []).append(name)
    yield from ((", ".join(names), gap) for gap, names in found.items())


def _connection_remedies(reason: str, *, by_proxy: bool) -> tuple[Remedy, ...]:
    if "certificate" in reason:
        return (
            Remedy(
                "if a proxy inspects TLS, set its CA certificate",
                "gcloud config set core/custom_ca_certs_file FILE",
            ),
        )
    if by_proxy:
        return (Remedy("check that the proxy is running and correct: `HTTPS_PROXY`, `NO_PROXY`"),)
    return (
        Remedy("check the network and the firewall, and whether a proxy is needed: `HTTPS_PROXY=http://HOST:PORT`"),
    )


NETWORK_RULES: tuple[CheckRule[EnvironmentFacts], ...] = (
    check_proxy,
    check_host_names,
    check_hosts_answer,
    check_clock,
    check_ca_file,
)


# The permissions that commands use, and the effect of a missing one [IAM's list; roles/tpu.admin has those of the TPU API].
NEEDED_PERMISSIONS = {
    "tpu.nodes.list": (Level.ERROR, "nodes cannot be listed"),
    "tpu.nodes.get": (Level.ERROR, "nodes cannot be read"),
    "tpu.nodes.create": (Level.WARNING, "`up` and `create` are refused"),
    "tpu.nodes.delete": (Level.WARNING, "`down` and `delete` are refused"),
    "tpu.nodes.start": (Level.WARNING, "a stopped node cannot be started"),
    "tpu.nodes.stop": (Level.WARNING, "`stop` and repair by a restart are refused"),
    "tpu.nodes.update": (Level.WARNING, "the ssh key cannot be put into a node's metadata"),
    "tpu.operations.get": (Level.WARNING, "the outcome of a change cannot be read"),
    "tpu.acceleratortypes.list": (Level.NOTE, "`tpuctl types` and some checks are refused"),
    "compute.projects.get": (Level.NOTE, "project-wide ssh keys and OS Login are unknown"),
    "serviceusage.services.get": (Level.NOTE, "it is unknown which APIs are enabled"),
}


@check_rule("TPU940", "project is set")
def check_project_is_set(environment: EnvironmentFacts) -> Iterator[RuleResult]:
    """Check that a project is set, by any source that `tpuctl config show` lists.

    Most commands fail without one: a warning, and an error if a NODE is named.
    """
    node = environment.cloud.node
    match environment.cloud.project:
        case Known(name):
            yield RuleResult(
                level=Level.OK, subject="project", text=f"the project is `{name}`", facts={"project": name}
            )
        case Unknown(reason):
            text = f"the project could not be read from the settings: {reason}"
            yield RuleResult(level=Level.UNKNOWN, subject="project", text=text, facts={"project": None})
        case Absent():
            yield RuleResult(
                level=Level.ERROR if node else Level.WARNING,
                subject="project",
                text="no project is set",
                why=f"`{node}` cannot be searched for" if node else "commands need `--project` each time",
                remedies=(
                    Remedy("set it", "tpuctl config set project PROJECT"),
                    Remedy("list your projects", list_projects_command()),
                ),
                facts={"project": None},
            )


@check_rule("TPU941", "permissions")
def check_permissions(environment: EnvironmentFacts) -> Iterator[RuleResult]:
    """Check which of the permissions that commands use the caller has on the project (`testIamPermissions`).

    An error without those to list and get nodes, a warning without one that changes nodes, else a note. Source: method text of
    Resource Manager v3; the method itself needs no permission.
    """
    name = environment.cloud.project.value if isinstance(environment.cloud.project, Known) else ""
    subject = f"project {name}" if name else "project"
    if environment.cloud.skip_reason:
        text = f"its APIs, its billing and your permissions were not checked: {environment.cloud.skip_reason}"
        yield RuleResult(level=Level.UNKNOWN, subject=subject, text=text, is_passing=True)
        return
    match environment.cloud.permissions:
        case None:
            return
        case Unknown() | Absent() as fact:
            text = f"your permissions in the project are unknown: {fact.reason}"
            is_passing = isinstance(fact, Unknown) and fact.is_passing
            yield RuleResult(level=Level.UNKNOWN, subject=subject, text=text, is_passing=is_passing)
        case Known(granted):
            account = environment.identity.impersonated or environment.identity.account or "EMAIL"
            member = f"{'serviceAccount' if account.endswith('.gserviceaccount.com') else 'user'}:{account}"
            all_missing = [one for one in environment.cloud.wanted_permissions if one not in granted]
            for level in (Level.ERROR, Level.WARNING, Level.NOTE):
                missing = [one for one in all_missing if NEEDED_PERMISSIONS[one][0] is level]
                if not missing:
                    continue
                role = "roles/tpu.admin" if any(one.startswith("tpu.") for one in missing) else "roles/viewer"
                grant = (
                    f"gcloud projects add-iam-policy-binding {name} --member={member} --role={role} --condition=None"
                )
                yield RuleResult(
                    level=level,
                    subject=subject,
                    text=f"you lack {', '.join(f'`{one}`' for one in missing)} in project `{name}`",
                    why="; ".join(NEEDED_PERMISSIONS[one][1] for one in missing),
                    remedies=(Remedy(f"ask an owner of the project to grant you `{role}`", grant),),
                    facts={"missingPermissions": missing, "role": role},
                )
            if not all_missing:
                text = "you have the permissions that commands use"
                yield RuleResult(level=Level.OK, subject=subject, text=text, facts={"missingPermissions": []})


PROJECT_ACCESS_RULES: tuple[CheckRule[EnvironmentFacts], ...] = (check_project_is_set, check_permissions)
