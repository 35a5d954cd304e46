"""The gate before a creation, made of what the user named and the settings. `gate` runs it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tpuctl.app.state_paths import preflight_cache_file
from tpuctl.check.colocation import own_prices
from tpuctl.check.facts import CheckSettings, Purpose, parse_bucket_use
from tpuctl.check.findings import ALL_CHECKS
from tpuctl.check.gate import CheckCache, PreflightCheck
from tpuctl.check.gathering import Sources
from tpuctl.check.rules import RULES
from tpuctl.clock import SystemClock
from tpuctl.cloud.projects import ComputeClient, ProjectsClient
from tpuctl.cloud.requests import FEW_RETRIES
from tpuctl.cloud.storage import BucketsClient
from tpuctl.cloud.tpu import TpuClient
from tpuctl.config.settings import SourceKind
from tpuctl.errors import InvalidInputError, SettingError
from tpuctl.models.grants import Grant
from tpuctl.names import check_project
from tpuctl.spelling import closest_match

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tpuctl.app.app import App
    from tpuctl.check.facts import BucketUse
    from tpuctl.config.settings import Settings


# Only the user who pays may skip these.
_NOT_FOR_A_PROJECT_FILE = frozenset({"all", "TPU405", "TPU408", "TPU409"})


def preflight_check(
    app: App,
    given: Mapping[str, Any],
    *,
    purpose: Purpose | None = None,
    machine: str | None = None,
    only_limits: bool = False,
) -> PreflightCheck:
    """Return the gate for the given options, by the names of their settings, and the settings.

    With `only_limits` it checks `max_price` and `budget` alone.

    Raises `InvalidInputError` for an invalid bucket and for an unknown check id.
    """
    for text in (text for key in ("buckets", "data_buckets", "checkpoint_buckets") for text in given.get(key, ())):
        parse_bucket_use(text)  # also an empty text, which would not count as a value
    settings = app.settings_with({name: _as_setting(name, value) for name, value in given.items()})
    # The flags of the checks do not change who is asking.
    user = app.settings
    place = "sandbox" if app.is_sandbox else user.text("endpoint") or "google"
    return PreflightCheck(
        lambda: check_sources(app),
        _check_settings(settings, purpose, machine),
        CheckCache(preflight_cache_file(app.invocation.environ, sandbox=app.is_sandbox), app.clock),
        accepted=_accepted_ids(settings),
        timeout=settings.duration("check_timeout"),
        # A network takes real time, even if the clock of the sandbox is simulated.
        real=app.invocation.clock or SystemClock(),
        now=app.now,
        only_limits=only_limits,
        identity=f"{place} {user.text('account')} {user.text('impersonate_service_account')}",
    )


def accepted_checks(app: App, given: tuple[str, ...]) -> frozenset[str]:
    """Return the ids of `--skip-check`, else of the settings. Raises `InvalidInputError` for an unknown id."""
    flags = {"skip_checks": _as_setting("skip_checks", given)} if given else {}
    return _accepted_ids(app.settings_with(flags))


def check_sources(app: App) -> Sources:
    """Return the API clients of the checks. Sends no request."""
    factory, endpoint = app.services.http_access()
    return Sources(
        # Not the app's own client, which retries for half a minute: the checks are optional.
        tpu=TpuClient(factory, app.clock, endpoint=endpoint, policy=FEW_RETRIES),
        buckets=BucketsClient(factory, app.clock, endpoint=endpoint),
        compute=ComputeClient(factory, app.clock, endpoint=endpoint),
        projects=ProjectsClient(factory, app.clock, endpoint=endpoint),
    )


def _check_settings(settings: Settings, purpose: Purpose | None, machine: str | None) -> CheckSettings:

    uses = (
        *_parse_buckets(settings, "buckets"),
        *_parse_buckets(settings, "data_buckets", writes=False),
        *_parse_buckets(settings, "checkpoint_buckets", reads=False),
    )
    if prices := settings.pairs("egress_prices"):
        try:
            own_prices(prices)
        except ValueError as error:
            raise SettingError(f"{_setting_source(settings, 'egress_prices')}: {error}") from None
    return CheckSettings(
        purpose=purpose or Purpose.TRAIN,
        buckets=tuple(dict.fromkeys(uses)),
        machine=machine,
        dataset_size=settings.size("dataset_size"),
        billing_project=_billing_project(settings),
        iap=settings.is_on("iap"),
        internal_ip=settings.is_on("internal_ip"),
        grants=tuple(Grant.parse(record) for record in settings.records("grants")),
        no_billing_outside_grants=settings.is_on("no_billing_outside_grants"),
        max_price=settings.dollars("max_price"),
        budget=settings.dollars("budget"),
        allow_unknown_price=settings.is_on("allow_unknown_price"),
        egress_prices=prices,
    )


def _setting_source(settings: Settings, key: str) -> str:
    """Return the source of a setting, and its name."""
    setting = settings[key]
    return f"{setting.source}: `{key}`" if setting else f"`{key}`"


def _billing_project(settings: Settings) -> str | None:
    """Return the project that pays for requests. It becomes a header, so that it must be a project id."""
    text = settings.text("billing_project")
    return None if text is None else check_project(text)


def _parse_buckets(settings: Settings, key: str, **use: bool) -> tuple[BucketUse, ...]:

    try:
        return tuple(parse_bucket_use(text, **use) for text in settings.items(key))
    except InvalidInputError as error:
        raise SettingError(f"{_setting_source(settings, key)}: {error.message}", hint=error.hint) from None


def _accepted_ids(settings: Settings) -> frozenset[str]:

    given = frozenset(
        text.upper() if text.lower() != ALL_CHECKS else ALL_CHECKS for text in settings.items("skip_checks")
    )
    setting, refused = settings["skip_checks"], sorted(given & _NOT_FOR_A_PROJECT_FILE)
    if setting and setting.source.kind is SourceKind.PROJECT_FILE and refused:
        raise SettingError(
            f"{setting.source}: `skip_checks` of a project file cannot name {' and '.join(f'`{id_}`' for id_ in refused)}",
            hint="it may come from another author: use the flag `--skip-check`, or your own settings file",
        )
    if given <= {ALL_CHECKS}:
        return given

    known = [rule.id for rule in RULES]
    others = sorted(given - set(known) - {ALL_CHECKS})
    if not others:
        return given

    from tpuctl.check.ai_platform import JOB_RULES  # noqa: PLC0415  # few users have such a job

    of_jobs = [rule.id for rule in JOB_RULES]
    if unknown := [text for text in others if text not in of_jobs]:
        text = unknown[0]
        near = closest_match(text, known) or closest_match(text, [*known, *of_jobs])
        hint = f"did you mean `{near}`?" if near else "`tpuctl check --all` shows the ids; `all` skips every check"
        if setting is None or setting.source.kind is SourceKind.FLAG:
            raise InvalidInputError(f"`--skip-check {text}`: there is no such check", hint=hint)
        raise SettingError(f"{setting.source}: `skip_checks`: there is no check `{text}`", hint=hint)
    return given


def _as_setting(name: str, value: Any) -> Any:  # click's value, as the settings take it
    if value is True:
        return "true"
    # Only ids are split at commas; a bucket name may have one.
    return tuple(part.strip() for text in value for part in text.split(",")) if name == "skip_checks" else value
