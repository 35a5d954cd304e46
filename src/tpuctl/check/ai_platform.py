"""Translate a job of AI Platform Training with a TPU: what differs on a TPU VM, a `tpuctl.yaml`, and a command.

Pure: takes a text; no request is sent, and no file is written here. Type, zone and image are from the table of accelerators.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from tpuctl.accelerators import AcceleratorType, documented_zones_of, find_accelerator_type, load_accelerators
from tpuctl.check.findings import CheckReport, Level, Remedy, RuleResult, check_rule, evaluate_rules, join_words, ticked
from tpuctl.check.training_job import JobField, JobStorage, TrainingJob, find_job_storage, load_service_offer, read_job
from tpuctl.command_text import join_command
from tpuctl.config.settings import SETTINGS, parse_setting
from tpuctl.errors import InvalidInputError
from tpuctl.escaping import escape_unprintable
from tpuctl.models.spec import check_labels
from tpuctl.names import closest_match, region_of_zone


@dataclass(frozen=True, slots=True)
class Replacement:
    """The TPU VM that replaces a job's TPU. `requested` is the job's own type, which its region may lack."""

    requested: AcceleratorType
    type: AcceleratorType
    zone: str
    version: str
    has_tensorflow: bool


@dataclass(frozen=True, slots=True)
class JobTranslation:
    """The result. `replacement`, `file` and `command` are None if the job names a TPU that was not offered."""

    source: str
    report: CheckReport
    replacement: Replacement | None
    file: str | None
    command: str | None

    def to_json(self) -> dict[str, Any]:
        """Return the replacement for scripts, without the findings."""
        replacement = self.replacement
        return {
            "source": self.source,
            "acceleratorType": replacement.type.name if replacement else None,
            "zone": replacement.zone if replacement else None,
            "runtimeVersion": replacement.version if replacement else None,
            "command": self.command,
            "file": self.file,
        }


def translate_job(
    text: str, source: str, *, target: str = "tpuctl.yaml", accepted: Collection[str] = ()
) -> JobTranslation:
    """Translate a configuration in YAML or JSON: a `trainingInput`, alone or in a whole job.

    `source` is the file name for messages, `target` the name of the new file. Findings whose id is `accepted` (or
    `all`) are one level milder. Raises `InvalidInputError` for an unreadable file and for a job without a TPU.
    """
    job = read_job(text, source)
    storage, replacement = find_job_storage(job), _find_replacement(job)
    command = file = None
    if replacement is not None:
        words = ["tpuctl", "run", "--up", target, "--rm"]
        limit, module = job.text("scheduling.maxRunningTime"), job.text("pythonModule")
        if limit and (match := re.fullmatch(r"0*([1-9]\d{0,8})(?:\.\d+)?s", limit.value)):
            words.append(f"--timeout={match[1]}s")
        if replacement.type.is_slice:
            # One program drives the whole slice, and must not claim the chips of its own machine [TensorFlow source].
            words += ["--worker=0", "--tpu-env", "--env=TPU_LOAD_LIBRARY=0"]
        command = join_command([*words, "--", "python3", "-m", module.value if module else "MODULE", *job.arguments])
        file = _render_settings_file(job, replacement, storage, command)
    report = evaluate_rules(JobCase(job, storage, replacement, target, command), JOB_RULES, accepted=accepted)
    return JobTranslation(source, report, replacement, file, command)


def _find_replacement(job: TrainingJob) -> Replacement | None:
    offer, type_, count = load_service_offer(), job.accelerator("type"), job.accelerator("count")
    name = offer["types"].get(type_.value, {}).get(count.value) if type_ and count else None
    requested = find_accelerator_type(name if type_ or count else offer["default_type"])
    if requested is None:
        return None
    chosen, zone = next(_places(requested, _region_of(job)))
    version = job.text("runtimeVersion")
    # Images with an old TensorFlow do not support newer generations.
    image = offer["runtimes"].get(version.value) if version and chosen is requested else None
    if image is None:
        return Replacement(requested, chosen, zone, chosen.runtime_version, has_tensorflow=False)
    return Replacement(requested, chosen, zone, image + ("-pod" if chosen.is_slice else ""), has_tensorflow=True)


def _region_of(job: TrainingJob) -> str:
    """Return the region that the job names, also by one of its zones; empty if it names none."""
    field = job.text("region")
    return re.sub(r"^([a-z]+-[a-z]+[0-9]+)-[a-z0-9]+\Z", r"\1", field.value) if field else ""


def _places(requested: AcceleratorType, region: str) -> Iterator[tuple[AcceleratorType, str]]:
    """Yield types with a zone, the best first.

    The type in its region; a newer one there, so that the data stays near, with as many chips and no less memory; the type in
    another region, first of the same continent.
    """
    zones = documented_zones_of(requested)
    for name in [region] if region else load_service_offer()["regions"]:
        yield from ((requested, zone) for zone in zones if region_of_zone(zone) == name)
    generations = list(load_accelerators().generations.values())
    newer = generations[generations.index(requested.generation) + 1 :]
    fitting = [one for one in newer if one.hbm_gib_per_chip >= requested.generation.hbm_gib_per_chip]
    for generation in sorted(fitting, key=lambda one: one.hbm_gib_per_chip):
        other = find_accelerator_type(generation.type_of(generation.size(requested.chips)))
        if other and other.is_listed:
            yield from ((other, zone) for zone in documented_zones_of(other) if region_of_zone(zone) == region)
    continent = region.partition("-")[0]
    yield from ((requested, zone) for zone in sorted(zones, key=lambda zone: not zone.startswith(f"{continent}-")))


@dataclass(frozen=True, slots=True)
class JobCase:
    """What the rules see: a job, its replacement in the file `target`, and the command that replaces its submission."""

    job: TrainingJob
    storage: JobStorage
    replacement: Replacement | None
    target: str
    command: str | None

    def found(
        self, level: Level, field: JobField | str | None, text: str, *remedies: Remedy | str, why: str | None = None
    ) -> RuleResult:
        """Return a result about a field, about the key of an absent field, or about the whole job."""
        lines, source = self.job.lines, self.job.source
        facts: dict[str, Any] = {"file": source, "line": lines.get("trainingInput", 1)}
        if isinstance(field, JobField):
            facts |= {"line": field.line, "key": field.key, "value": field.value}
        elif field:
            facts |= {"line": lines.get(field, facts["line"]), "key": field, "value": None}
        return RuleResult.of(level, f"{source} line {facts['line']}", text, *remedies, why=why, facts=facts)


@check_rule("TPU801", "AI Platform Training has ended")
def service_has_ended(case: JobCase) -> Iterator[RuleResult]:
    """Report that the service no longer accepts jobs, which command does the same work, and what else changes.

    Always a warning: it ended on 2025-01-31 (documentation). The service set TPU_CONFIG, and `TPUClusterResolver()` without
    arguments read it (documentation). On a TPU VM the chips are attached to the machine: use `TPUClusterResolver('local')`;
    for a slice use the node's name, on worker 0 only (TensorFlow source). Jobs read data as tpuServiceAccount with
    roles/ml.serviceAgent (documentation); a TPU VM reads as its own account, which needs a role on each bucket.
    """
    text = f"AI Platform Training ended on {load_service_offer()['ended']} and no longer runs this job"
    remedies: list[Remedy | str] = []
    if case.replacement:
        resolver = "os.environ['TPU_NAME']" if case.replacement.type.is_slice else "'local'"
        check = join_command(["tpuctl", "check", case.target])
        remedies = [
            Remedy("run it on your own TPU VM, with the file that was made from this one", case.command),
            Remedy("first check that the TPU VM's own account may use the buckets", check),
            f"in the code write `TPUClusterResolver({resolver})`, and remove code that waits for TPU_CONFIG",
        ]
    why = "`gcloud ai-platform jobs submit training` always fails"
    yield case.found(Level.WARNING, None, text, *remedies, why=why)


@check_rule("TPU803", "Type of TPU")
def accelerator_type_was_offered(case: JobCase) -> Iterator[RuleResult]:
    """Check that acceleratorConfig names a TPU that the service offered, by type and number of cores.

    TPU_V2 and TPU_V3 had 8, TPU_V2_POD 32, 128, 256 and 512, TPU_V3_POD 32, 128 and 256 (documentation). Any other is an
    error, and so is a count without a type, or a type without a count: no TPU VM is known to replace it.
    """
    type_, count, types = case.job.accelerator("type"), case.job.accelerator("count"), load_service_offer()["types"]
    if case.replacement:
        yield case.found(Level.OK, type_ or "scaleTier", f"the TPU of the job is {case.replacement.requested.name}")
    elif type_ is None:
        types_in_words = join_words(types, last="or")
        yield case.found(Level.ERROR, count, "`acceleratorConfig` has no `type`", f"set it to {types_in_words}")
    elif type_.value not in types:
        yield _judge_offered(case, type_, types)
    else:
        counts = join_words(types[type_.value], last="or")
        text = f"{f'`{count.written}`' if count else 'no `count`'}: `{type_.value}` had {counts} cores"
        yield case.found(Level.ERROR, count or "workerConfig.acceleratorConfig", text, f"set `count` to {counts}")


@check_rule("TPU807", "Region of the job")
def region_had_tpus(case: JobCase) -> Iterator[RuleResult]:
    """Check that the job is for a region in which the service had TPUs: us-central1 or europe-west4.

    Any other is an error (documentation).
    """
    if field := case.job.text("region"):
        yield _judge_offered(case, field, load_service_offer()["regions"])


def _judge_offered(case: JobCase, field: JobField, offered: Collection[str]) -> RuleResult:
    if field.value in offered:
        return case.found(Level.OK, field, f"{field.value} had TPUs")
    near = closest_match(field.value, offered)
    advice = f"did you mean `{near}`?" if near else "set it to one of them"
    return case.found(Level.ERROR, field, f"`{field.written}`: the service had TPUs with {join_words(offered)}", advice)


@check_rule("TPU808", "Runtime version")
def runtime_version_has_image(case: JobCase) -> Iterator[RuleResult]:
    """Check that the runtime version supported TPUs, 1.15, 2.1 to 2.9 or 2.11, and that a TPU VM image has its TensorFlow.

    Any other version is an error (documentation). TensorFlow 2.6 to 2.9 and 2.11 have their own images, with `-pod` for
    slices (documentation, lists of 2022 to 2024; a zone may no longer offer them). For an older one, and on a newer type, the
    default image of the type is used, without TensorFlow: a warning.
    """
    field, replacement = case.job.text("runtimeVersion"), case.replacement
    if field is None:
        return
    judged = _judge_offered(case, field, load_service_offer()["runtimes"])
    if judged.level is Level.OK and replacement and not replacement.has_tensorflow:
        text = f"`{field.written}`: no image with its TensorFlow is known for {replacement.type.name}"
        listing = f"tpuctl versions --zone {replacement.zone}"
        choose = Remedy("choose an image with a suitable TensorFlow, and set `version` to it", listing)
        yield case.found(Level.WARNING, field, f"{text}, and `{replacement.version}` has none", choose)
    else:
        yield judged


@check_rule("TPU812", "Zone that offers the type")
def zone_offers_type(case: JobCase) -> Iterator[RuleResult]:
    """Check that a zone of the job's region offers the TPU as a TPU VM, according to the table of accelerators.

    A warning if none does: then a newer type with as many chips in the same region is used, so that the data stays
    near, or, if there is none, the same type in another region.
    """
    if (replacement := case.replacement) is None:
        return
    field, region, requested = case.job.text("region") or "region", _region_of(case.job), replacement.requested
    type_, zone = replacement.type, replacement.zone
    listing = Remedy("list the zones that offer the TPU now", f"tpuctl types {type_.name}")
    if type_ is not requested:
        text = f"no zone of {region} offers {requested.name}: using {type_.name} in {zone} ({_chips_and_memory(type_)})"
        yield case.found(
            Level.WARNING, field, text, listing, why=f"{requested.name} had {_chips_and_memory(requested)}"
        )
    elif region and region_of_zone(zone) != region:
        text = (
            f"no zone of {region} offers {type_.name}, nor a newer TPU with as many chips: using {type_.name} in {zone}"
        )
        why = "data in the old region is read across regions, which is billed and slow"
        yield case.found(Level.WARNING, field, text, listing, why=why)
    else:
        yield case.found(Level.OK, field, f"{type_.name} is offered in {zone}")


def _chips_and_memory(type_: AcceleratorType) -> str:
    return f"{type_.chips} chips with {type_.generation.hbm_gib_per_chip} GiB each"


@check_rule("TPU817", "Keys that are not translated")
def keys_are_translated(case: JobCase) -> Iterator[RuleResult]:
    """Report all keys that have no equivalent in tpuctl.yaml or that the service did not know, in one warning.

    Examples are hyperparameters, containers, evaluators and disks.
    """
    offer, job = load_service_offer(), case.job
    known = {*offer["read"], *offer["settings"]}
    for key, pattern in offer["read_with_value"].items():
        if (field := job.text(key)) and re.fullmatch(pattern, field.value):
            known.add(key)
    # `a` and `a.b` of a known key `a.b.c`
    parents = {"", "trainingInput", *(key[: dot.start()] for key in known for dot in re.finditer(r"\.", key))}
    left = {
        key: line for key, line in job.lines.items() if key not in known | parents and key.rpartition(".")[0] in parents
    }
    if left:
        listed = join_words(f"`{key}` (line {line})" for key, line in left.items())
        advice = "check whether the job needs them; `tpuctl up --help` lists what a TPU VM can have"
        yield case.found(Level.WARNING, next(iter(left)), f"not translated: {listed}", advice)


@check_rule("TPU819", "Places in Cloud Storage")
def storage_places_are_valid(case: JobCase) -> Iterator[RuleResult]:
    """Check that what looks like a location in Cloud Storage is valid: jobDir, packageUris, and `gs://` arguments.

    A warning for an invalid one: it is missing in the buckets that `tpuctl check` checks. Distance and access are
    checked by other rules.
    """
    for field, reason in case.storage.refused:
        yield case.found(Level.WARNING, field, reason, "write it like `gs://BUCKET/PREFIX`")


@check_rule("TPU820", "Values that were flags of gcloud")
def file_has_every_value(case: JobCase) -> Iterator[RuleResult]:
    """Report what the file does not say, in one note: region, runtimeVersion or pythonModule.

    Flags of gcloud gave them then. `tpuctl run --up` syncs the current git tree, so that no package need be built.
    """
    missing = {key: used for key, used in load_service_offer()["flags"].items() if case.job.text(key) is None}
    if missing:
        text = f"no {join_words(ticked(missing), last='or')}: a flag of gcloud gave it"
        yield case.found(Level.NOTE, None, f"{text}; used instead: {join_words(missing.values())}")


JOB_RULES = (
    service_has_ended,
    accelerator_type_was_offered,
    region_had_tpus,
    runtime_version_has_image,
    zone_offers_type,
    keys_are_translated,
    storage_places_are_valid,
    file_has_every_value,
)


def _render_settings_file(job: TrainingJob, replacement: Replacement, storage: JobStorage, command: str) -> str:
    # An unprintable character, such as a newline, would end a comment; a command with an escaped one would be another command.
    shown = command if command.isprintable() else "tpuctl run … (see `tpuctl check --ai-platform`)"
    lines = [
        f"# Made from {escape_unprintable(job.source)}, a job of AI Platform Training, by `tpuctl check --ai-platform`.",
        "#",
        "# Instead of `gcloud ai-platform jobs submit training`:",
        f"#   {shown}",
        "",
        *_machine_lines(job, replacement),
    ]
    for key, setting in load_service_offer()["settings"].items():
        if field := job.text(key):
            try:
                parse_setting(SETTINGS[setting], field.value)
                lines.append(f"{setting}: {_render_scalar(field.value)}  # {field.origin}")
            except ValueError as error:
                lines.append(f"# {setting} is not translated: {escape_unprintable(str(error))}  # {field.origin}")
    try:
        check_labels({key: field.value for key, field in job.labels.items()}, kept=1)
    except InvalidInputError as error:
        lines.append(f"# labels are not translated: {escape_unprintable(error.message)}")
    else:
        lines += ["labels:"] if job.labels else []
        lines += [
            f"  {_render_scalar(key)}: {_render_scalar(field.value)}  # line {field.line}"
            for key, field in job.labels.items()
        ]
    for setting, paths in storage.buckets.items():
        lines += [f"{setting}:"] if paths else []
        lines += [f"  - {_render_scalar(str(path))}  # {origin}" for path, origin in paths.items()]
    if urls := [field.value for field in storage.packages]:
        # The first line that fails must be the one that is reported.
        lines += [f"# {storage.packages[0].origin}", "setup: |", "  set -e", '  cd "$(mktemp -d)"']
        lines.append("  " + shlex.join(["gcloud", "storage", "cp", *urls, "."]))
        lines.append("  " + shlex.join(["pip3", "install", *(f"./{url.rpartition('/')[2]}" for url in urls)]))
    return "\n".join([*lines, ""])


def _machine_lines(job: TrainingJob, replacement: Replacement) -> Iterator[str]:
    """Yield type, zone and version, each with the key that it comes from."""
    type_, count, region = job.accelerator("type"), job.accelerator("count"), job.text("region")
    origins = [field.origin for field in (type_ or job.text("scaleTier") or job.text("workerType"), count) if field]
    moved = replacement.type is not replacement.requested
    instead = f" instead of {replacement.requested.name}, which the region lacks" if moved else ""
    yield f"type: {replacement.type.name}  # {', '.join(origins)}{instead}"
    elsewhere = ", where no zone offers it" if region_of_zone(replacement.zone) != _region_of(job) else ""
    yield f"zone: {replacement.zone}  # {region.origin + elsewhere if region else 'a guess: the file names no region'}"
    version = job.text("runtimeVersion") if replacement.has_tensorflow else None
    yield f"version: {replacement.version}  # {version.origin if version else 'the default of the type'}"


# What YAML 1.1 reads as this exact text in every position.
_PLAIN_SCALAR = re.compile(r"[A-Za-z][A-Za-z0-9_./@-]*(?::[A-Za-z0-9_./@-]+)*")
_YAML_WORDS = frozenset({"null", "true", "false", "yes", "no", "on", "off", "y", "n"})


def _render_scalar(text: str) -> str:
    if _PLAIN_SCALAR.fullmatch(text) and text.lower() not in _YAML_WORDS:
        return text
    # JSON's escapes are YAML's too, but YAML takes fewer characters as they are.
    quoted = json.dumps(text, ensure_ascii=False)
    return "".join(char if char.isprintable() else f"\\U{ord(char):08X}" for char in quoted)
