"""Rules about access to the cloud: credentials, tokens, the quota project, proxy, hosts, clock, project and permissions.

The project itself (state, billing, APIs) is judged by the rules of `check`.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from tpuctl.check.facts import Absent, Fact, Known, Unknown, value_or_none
from tpuctl.check.findings import Level, Remedy, RuleResult, SetFileMode, list_projects_command
from tpuctl.command_text import command_word, fitting, quote_word
from tpuctl.doctor.doctor_facts import AccessFailure, AccessToken
from tpuctl.doctor.verdicts import environment_rule, error, note, unknown, unread, verdict, warning
from tpuctl.durations import format_duration, format_timestamp

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tpuctl.doctor.doctor_facts import EnvironmentFacts

_LOGIN_COMMAND = "gcloud auth application-default login"
_UNATTENDED = Remedy(
    "if no user can log in here: set `GOOGLE_APPLICATION_CREDENTIALS` to a credentials file, "
    "or use workload identity federation"
)
# All APIs accept this scope [API tpu v2, auth scopes].
_CLOUD_PLATFORM_SCOPE = "https://www.googleapis.com/auth/cloud-platform"


@environment_rule("TPU921", "credentials", "credentials")
def check_credentials(environment: EnvironmentFacts) -> Iterator[RuleResult]:
    """Check the credentials that tpuctl uses.

    These are `GOOGLE_APPLICATION_CREDENTIALS`, application default credentials, the metadata server of a machine on Google
    Cloud, and gcloud's login. An error if there are none, or if the file cannot be read.
    """
    identity, log_in = environment.identity, _login_remedy(environment)
    if not identity.is_needed:
        return
    match identity.file:
        case Unknown(reason) if identity.named_by:
            unset = "set the variable to a credentials file, or unset it: it overrides every other login"
            text = f"`{identity.named_by}` names a file that cannot be used: {reason}"
            yield error(text, Remedy(unset, f"unset {identity.named_by}"), replace(log_in, text="then log in"))
        case Unknown(reason):
            yield error(f"the credentials file cannot be used: {reason}", log_in, _UNATTENDED)
        case Absent():
            yield from _judge_login_without_file(environment, log_in)


def _judge_login_without_file(environment: EnvironmentFacts, log_in: Remedy) -> Iterator[RuleResult]:
    identity, account = environment.identity, environment.identity.gcloud_account
    match identity.token:
        case Known(AccessToken()):
            return
        case Known(AccessFailure(reason)):
            yield error(
                f"there is no credentials file, and gcloud's login of `{account}` gives no token: {reason}"
                if account
                else "not logged in: there are no credentials on this machine",
                log_in,
                _UNATTENDED,
                why="no call to the cloud can be made; only what needs no account was checked",
                facts={"account": account, "kind": None, "looked": reason},
            )
        case token:
            reason = token.reason if isinstance(token, (Unknown, Absent)) else "it was not requested"
            text = "there is no credentials file, and it is unknown whether this machine or gcloud has a login"
            helps = (log_in,) if isinstance(token, Unknown) and token.is_passing else ()
            yield unknown(f"{text}: {reason}", *helps, is_passing=True)


@environment_rule("TPU922", "permissions of the credentials file")
def check_credential_file_mode(environment: EnvironmentFacts) -> Iterator[RuleResult]:
    """Check that only you may read the credentials file, since its content suffices to act as you; else a warning."""
    found = value_or_none(environment.identity.file)
    if found is None:
        return
    path, mode = str(found.entry.path), found.entry.octal
    about = {"subject": path, "facts": {"path": path, "mode": mode}}
    if found.entry.is_open():
        restrict = Remedy.by(SetFileMode(path, 0o600), "restrict it to your user")
        why = "a user who reads them can act as you"
        yield warning(f"other users may read the credentials (mode {mode})", restrict, why=why, **about)


@environment_rule("TPU923", "the quota project", "credentials")
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
        return
    name = command_word("project", value_or_none(environment.cloud.project))
    yield warning(
        "the login names no quota project",
        Remedy("set one", f"gcloud auth application-default set-quota-project {name}"),
        why="some APIs then claim to be disabled in a project that is not yours",
        facts={"quotaProject": None},
    )


@environment_rule("TPU924", "access token", "credentials")
def check_access_token(environment: EnvironmentFacts) -> Iterator[RuleResult]:
    """Fetch an access token, and ask Google for its account and scopes; it is not kept.

    An error if Google refuses (an expired login, a deleted key, a wrong clock), or if the scope `cloud-platform` is missing.
    Unknown if Google was not reached. Source: google-auth, and Google's `tokeninfo`.
    """
    identity = environment.identity
    if not identity.is_needed:
        return
    # Without a file, TPU921 says why there is no token.
    match identity.token:
        case Known(AccessToken() as found) if found.scopes is not None and _CLOUD_PLATFORM_SCOPE not in found.scopes:
            yield _scope_missing(found, environment)
        case Known(AccessFailure() as refused) if isinstance(identity.file, Known):
            remedies = tuple(map(Remedy, refused.advice)) or (_login_remedy(environment),)
            text, why = f"no access token: {refused.reason}", "no call to the cloud can be made"
            yield error(text, *remedies, why=why, facts={"errorId": refused.error_id})
        case Unknown(reason) if isinstance(identity.file, Known):
            again = Remedy("check the network and the proxy, then run `tpuctl doctor` again")
            yield unknown(f"it is unknown whether Google accepts the credentials: {reason}", again, is_passing=True)


def _scope_missing(found: AccessToken, environment: EnvironmentFacts) -> RuleResult:
    account, impersonated = environment.identity.account, environment.identity.impersonated
    who = f"`{account}`" if account else "an account that Google does not name"
    if impersonated and impersonated != account:
        who += f", impersonating `{impersonated}`"
    facts = {
        "account": account,
        "impersonated": impersonated,
        "scopes": sorted(found.scopes) if found.scopes is not None else None,
        "expires": format_timestamp(found.expires) if found.expires else None,
    }
    set_scope = "gcloud compute instances set-service-account VM --scopes=cloud-platform"
    return error(
        f"the credentials of {who} lack the scope `cloud-platform`",
        _login_remedy(environment),
        Remedy("on a Compute Engine VM: stop it, then set the scope", set_scope),
        why="APIs answer with ACCESS_TOKEN_SCOPE_INSUFFICIENT",
        facts=facts,
    )


@environment_rule("TPU925", "accounts of tpuctl and gcloud", "credentials")
def check_accounts_agree(environment: EnvironmentFacts) -> Iterator[RuleResult]:
    """Compare the account of the credentials with that of gcloud; a note if `gcloud` and tpuctl act as different accounts."""
    identity = environment.identity
    ours, gcloud = identity.account, identity.gcloud_account
    if not identity.is_needed or not ours or not gcloud or identity.impersonated:
        return
    if ours.lower() == gcloud.lower():
        return
    yield note(
        f"tpuctl acts as `{ours}`, gcloud as `{gcloud}`",
        Remedy("log in with the account of gcloud", _LOGIN_COMMAND),
        why="their permissions may differ",
        facts={"account": ours, "gcloudAccount": gcloud},
    )


def _login_remedy(environment: EnvironmentFacts) -> Remedy:
    if isinstance(environment.machine.gcloud, Known):
        return Remedy("log in", _LOGIN_COMMAND)
    install = "install the Google Cloud CLI (https://cloud.google.com/sdk/docs/install), then log in"
    return Remedy(install, _LOGIN_COMMAND)


_CLOCK_OFF = timedelta(seconds=60)
# A signed assertion for a token is valid for an hour, with a few minutes of tolerance [google-auth source: jwt, clock skew].
_CLOCK_FAR_OFF = timedelta(minutes=5)
_GOOGLE = ".googleapis.com"
_SYNC = Remedy("enable time synchronization", "sudo timedatectl set-ntp true")
_NO_CERTIFICATE = Remedy(
    "if a proxy inspects TLS, set its CA certificate", "gcloud config set core/custom_ca_certs_file FILE"
)
_CHECK_PROXY = Remedy("check that the proxy is running and correct: `HTTPS_PROXY`, `NO_PROXY`")
_CHECK_NETWORK = Remedy(
    "check the network and the firewall, and whether a proxy is needed: `HTTPS_PROXY=http://HOST:PORT`"
)


@environment_rule("TPU931", "proxy", "proxy")
def check_proxy(environment: EnvironmentFacts) -> Iterator[RuleResult]:
    """Check the proxy: that of `HTTPS_PROXY` or `ALL_PROXY`, else gcloud's; and the hosts that `NO_PROXY` excludes.

    An error if its URL cannot be used: no request can be sent. A note if it is not used for Google's hosts.
    """
    network = environment.network
    source = f", from {network.proxy_source}" if network.proxy_source else ""
    facts = {"source": network.proxy_source, "bypassed": list(network.bypassed)}
    match network.proxy:
        case Unknown(reason):
            rewrite = Remedy("write it like `http://HOST:PORT`, or unset it")
            text = f"the proxy cannot be used{source}: {reason}"
            yield error(text, rewrite, why="no request can be sent", facts=facts)
            return
        case Known(url):
            facts["proxy"] = url
            if bypassed := [name for name in network.bypassed if name.endswith(_GOOGLE)]:
                why = "they cannot be reached if only the proxy has access to the internet"
                text = f"`NO_PROXY` excludes {', '.join(bypassed)} from the proxy {url}{source}"
                yield note(text, why=why, facts=facts)
        case _:
            pass
    if network.other_proxies:
        names = " and ".join(f"`{name}`" for name in network.other_proxies)
        text = f"{names} {'names' if len(network.other_proxies) == 1 else 'name'} another proxy, which is not used"
        yield note(text, Remedy("set them all to the same proxy, or unset the others"), facts=facts)


@environment_rule("TPU932", "host names", "names")
def check_host_names(environment: EnvironmentFacts) -> Iterator[RuleResult]:
    """Check that the names of the hosts that commands call can be resolved; a proxy resolves names itself.

    An error if one cannot be resolved, unknown if there was no result before the deadline.
    """
    asked = {host.name: host.addresses for host in environment.network.hosts if host.addresses is not None}
    for subject, level, fact in _group_by_reason(asked):
        problem = "the name was not resolved in time" if fact.is_passing else "the name cannot be resolved"
        yield verdict(
            level,
            f"{problem}: {fact.reason}",
            Remedy("check the network, and the name servers in `/etc/resolv.conf`"),
            Remedy("if only a proxy has access to the internet, set it: `HTTPS_PROXY=http://HOST:PORT`"),
            subject=subject,
            is_passing=fact.is_passing,
        )


@environment_rule("TPU933", "services answer", "services")
def check_hosts_answer(environment: EnvironmentFacts) -> Iterator[RuleResult]:
    """Send a request without credentials to each host that commands call; any answer is fine.

    An error if no answer comes, unknown if none came before the deadline. Hosts whose name TPU932 could not resolve are left
    out. A sandbox that cannot be opened is an error, and no other cloud is called in its place.
    """
    hosts, failure = environment.network.hosts, environment.network.sandbox_failure
    if failure is not None:
        yield error(
            failure.reason,
            *map(Remedy, failure.advice),
            Remedy("see other solutions", "tpuctl explain sandbox"),
            subject="the sandbox",
            why="commands in the sandbox fail with this error; no other cloud was called in its place",
        )
        return
    unresolved = {host.name for host in hosts if isinstance(host.addresses, Unknown) and not host.addresses.is_passing}
    asked = {host.name: host.answer for host in hosts if host.name not in unresolved}
    check = _CHECK_PROXY if isinstance(environment.network.proxy, Known) else _CHECK_NETWORK
    for subject, level, fact in _group_by_reason(asked):
        text = fact.reason if fact.is_passing else f"no answer: {fact.reason}"
        remedy = _NO_CERTIFICATE if "certificate" in fact.reason else check
        yield verdict(level, text, remedy, subject=subject, is_passing=fact.is_passing)


@environment_rule("TPU934", "clock", "clock")
def check_clock(environment: EnvironmentFacts) -> Iterator[RuleResult]:
    """Compare the clock of this machine with the `Date` of an answer.

    A difference of more than a minute is a warning, of more than five an error: tokens and signatures are refused
    (`invalid_grant`). A note for an endpoint on this machine, which may be a sandbox with its own clock. The time zone does not
    matter.
    """
    network, ahead = environment.network, environment.network.ahead
    if ahead is None:
        yield unknown("the clock could not be checked: no host answered with its time", is_passing=True)
        return
    off, is_behind, zone = abs(ahead), ahead > timedelta(), network.time_zone
    text = f"the clock of this machine is {format_duration(off)} {'behind' if is_behind else 'ahead'}"
    facts = {"secondsBehind": round(ahead.total_seconds()), "timeZone": zone}
    if off <= _CLOCK_OFF:
        return
    if network.is_local:
        endpoint = "that of the endpoint, which is on this machine and may have its own clock"
        yield note(f"{text}{'' if is_behind else ' of'} {endpoint}", facts=facts)
    elif off <= _CLOCK_FAR_OFF:
        why = "Google may refuse tokens and signatures with a wrong time (`invalid_grant`)"
        yield warning(text, _SYNC, why=why, facts=facts)
    else:
        why = "Google refuses tokens and signatures with a wrong time (`invalid_grant`)"
        yield error(text, _SYNC, why=why, facts=facts)


@environment_rule("TPU935", "custom CA certificates")
def check_ca_file(environment: EnvironmentFacts) -> Iterator[RuleResult]:
    """Check that the file of gcloud's `core/custom_ca_certs_file` can be read; else an error."""
    entry = environment.network.ca_file
    if entry is None:
        return
    subject = str(entry.path)
    if entry.exists and not entry.problem:
        return
    text = f"the CA certificates cannot be read: {entry.problem or 'there is no such file'}"
    unset = Remedy("set an existing file, or unset it", "gcloud config unset core/custom_ca_certs_file")
    yield error(text, unset, subject=subject, why="no server can be verified")


def _group_by_reason(facts: Mapping[str, Fact[Any]]) -> Iterator[tuple[str, Level, Unknown]]:
    """Yield each reason once, with the hosts that it applies to, and its level."""
    found: dict[Unknown, list[str]] = {}
    for name, fact in facts.items():
        if isinstance(fact, Unknown):
            found.setdefault(replace(fact, reason=fact.reason.removeprefix(f"{name} ")), []).append(name)
    for gap, names in found.items():
        yield ", ".join(names), Level.UNKNOWN if gap.is_passing else Level.ERROR, gap


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


@environment_rule("TPU940", "project is set", "project")
def check_project_is_set(environment: EnvironmentFacts) -> Iterator[RuleResult]:
    """Check that a project is set, by any source that `tpuctl config show` lists.

    Most commands fail without one: a warning, and an error if a NODE is named.
    """
    node = environment.cloud.node
    match environment.cloud.project:
        case Unknown(reason):
            yield unknown(f"the project could not be read from the settings: {reason}", facts={"project": None})
        case Absent():
            yield verdict(
                Level.ERROR if node else Level.WARNING,
                "no project is set",
                Remedy("set it", "tpuctl config set project PROJECT"),
                Remedy("list your projects", list_projects_command()),
                why=f"`{node}` cannot be searched for" if node else "commands need `--project` each time",
                facts={"project": None},
            )


@environment_rule("TPU941", "permissions")
def check_permissions(environment: EnvironmentFacts) -> Iterator[RuleResult]:
    """Check which of the permissions that commands use the caller has on the project (`testIamPermissions`).

    An error without those to list and get nodes, a warning without one that changes nodes, else a note. Source: method text of
    Resource Manager v3; the method itself needs no permission.
    """
    cloud, name = environment.cloud, value_or_none(environment.cloud.project)
    subject = f"project {name}" if name else "project"
    if cloud.skip_reason:
        text = f"its APIs, its billing and your permissions were not checked: {cloud.skip_reason}"
        yield unknown(text, subject=subject, is_passing=True)
        return
    match cloud.permissions:
        case Unknown() as fact:
            yield unread("your permissions in the project are unknown", fact, subject=subject)
        case Absent(reason):
            yield unknown(f"your permissions in the project are unknown: {reason}", subject=subject)
        case Known(granted):
            account = fitting("account", environment.identity.impersonated or environment.identity.account)
            member = f"{'serviceAccount' if account.endswith('.gserviceaccount.com') else 'user'}:{account}"
            all_missing = [one for one in NEEDED_PERMISSIONS if one not in granted]
            for level in (Level.ERROR, Level.WARNING, Level.NOTE):
                missing = [one for one in all_missing if NEEDED_PERMISSIONS[one][0] is level]
                if not missing:
                    continue
                role = "roles/tpu.admin" if any(one.startswith("tpu.") for one in missing) else "roles/viewer"
                grant = (
                    f"gcloud projects add-iam-policy-binding {command_word('project', name)} "
                    f"--member={quote_word(member)} --role={role} --condition=None"
                )
                yield verdict(
                    level,
                    f"you lack {', '.join(f'`{one}`' for one in missing)} in project `{name}`",
                    Remedy(f"ask an owner of the project to grant you `{role}`", grant),
                    subject=subject,
                    why="; ".join(NEEDED_PERMISSIONS[one][1] for one in missing),
                    facts={"missingPermissions": missing, "role": role},
                )
