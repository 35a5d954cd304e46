"""Translate a job of AI Platform Training with a TPU: what differs on a TPU VM, a `tpuctl.yaml`, and a command.

Pure: takes a text; no request is sent, and no file is written here. Type, zone and image are from the table of accelerators.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from tpuctl.accelerators import AcceleratorType, documented_zones_of, find_accelerator_type, load_accelerators
from tpuctl.check.findings import CheckReport, Level, Remedy, RuleResult, check_rule, evaluate_rules, join_words
from tpuctl.command_text import join_command
from tpuctl.config.settings import SETTINGS, parse_setting
from tpuctl.errors import InvalidInputError
from tpuctl.escaping import escape_unprintable
from tpuctl.models.spec import check_labels
from tpuctl.names import BucketPath, region_of_zone
from tpuctl.yaml_reader import KeyPath, load_data, parse_document

_MAX_VALUES = 20_000
# In JSON, YAML rejects characters escaped as a pair. An escaped backslash is matched first: what follows it is no escape.
_ESCAPED_PAIR = re.compile(r"\\\\|\\ud[89ab][0-9a-f]{2}\\ud[c-f][0-9a-f]{2}", re.IGNORECASE)
_HINT = "a job with a TPU has `scaleTier: BASIC_TPU`, or `scaleTier: CUSTOM` with `workerType: cloud_tpu`"


@cache
def load_service_offer() -> dict[str, Any]:
    """Return what AI Platform Training offered before it ended, `data/ai_platform.yaml`."""
    return dict(load_data("ai_platform.yaml"))


@dataclass(frozen=True, slots=True)
class JobField:
    """A value as written, with its dotted key from the top of the file (of an item: that of its list) and its line."""

    value: str
    key: str
    line: int

    @property
    def written(self) -> str:
        """`key: value`, as in the file."""
        return f"{self.key.rpartition('.')[2]}: {self.value}"

    @property
    def origin(self) -> str:
        """Where it is in the file, for a comment."""
        return f"{self.key}, line {self.line}"


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """A job with a TPU. Keys are dotted, and relative to `trainingInput` for what is in it."""

    source: str
    fields: Mapping[str, Sequence[JobField]]  # the value of a key, or the items of its list
    lines: Mapping[str, int]  # of all keys

    def text(self, key: str) -> JobField | None:
        """Return the value of a key; None if it is absent or empty."""
        return next(iter(self.fields.get(key, ())), None)

    def accelerator(self, key: str) -> JobField | None:
        """Return `type` or `count` (of cores) of the TPU: the worker's, or that of a `cloud_tpu` master."""
        master = self.text("masterType")
        replica = "masterConfig" if master and master.value == "cloud_tpu" else "workerConfig"
        return self.text(f"{replica}.acceleratorConfig.{key}")

    @property
    def region(self) -> str:
        """The region that the job names, also by one of its zones; empty if it names none."""
        field = self.text("region")
        return re.sub(r"^([a-z]+-[a-z]+[0-9]+)-[a-z0-9]+\Z", r"\1", field.value) if field else ""

    @property
    def arguments(self) -> tuple[str, ...]:
        """The arguments of the program; the service added `--job-dir` [API field text of jobDir]."""
        given, job_dir = tuple(field.value for field in self.fields.get("args", ())), self.text("jobDir")
        if job_dir is None or any(re.match(r"--job[-_]dir(?:=|$)", word) for word in given):
            return given
        return (*given, f"--job-dir={job_dir.value}")


def read_job(text: str, source: str) -> TrainingJob:
    """Return the job with a TPU in a text: a whole job, or only its TrainingInput, as YAML or JSON.

    Raises `InvalidInputError` as `parse_document` does, and if the text has no job with a TPU.
    """
    text = text.removeprefix("\ufeff")
    if text.lstrip().startswith("{"):
        text = _ESCAPED_PAIR.sub(
            lambda pair: pair[0] if pair[0] == r"\\" else json.loads(f'"{pair[0]}"'), text.replace("\t", " ")
        )
    document = parse_document(text, source, most=_MAX_VALUES, as_written=True)
    if not isinstance(document.value, dict):
        raise InvalidInputError(
            f"{source} is not a job's configuration: it holds no `key: value` lines",
            hint="name the file that `gcloud ai-platform jobs submit training --config` took",
        )
    fields: dict[str, list[JobField]] = {}
    for path, value in _values(document.value):
        field = JobField(value, _dotted(path), document.lines[path])
        fields.setdefault(field.key.removeprefix("trainingInput."), []).append(field)
    lines: dict[str, int] = {}
    for path, line in document.lines.items():
        lines.setdefault(_dotted(path).removeprefix("trainingInput."), line)
    job = TrainingJob(source, fields, lines)
    tier = job.text("scaleTier")
    # gcloud's flag also accepts `basic-tpu`.
    name = tier.value.upper().replace("-", "_") if tier else "CUSTOM"
    keys = ("workerConfig.acceleratorConfig.type", "masterConfig.acceleratorConfig.type", "workerType", "masterType")
    machines = [machine for key in keys if (machine := job.text(key))] if name == "CUSTOM" else []
    if name != "BASIC_TPU" and not any(one.value == "cloud_tpu" or one.value.startswith("TPU_") for one in machines):
        found = machines[0] if machines else tier
        where = f" line {found.line}: `{found.written}`" if found else ""
        raise InvalidInputError(f"{source}{where} is not a job with a TPU", hint=_HINT)
    return job


def _values(value: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, str]]:
    """Yield each scalar with its path. A key without a value is an absent key."""
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _values(item, (*path, key))
    elif value or isinstance(path[-1], int):
        yield path, value


def _dotted(path: KeyPath) -> str:
    return ".".join(part for part in path if isinstance(part, str))


_GS_URL = re.compile(r"gs://[^\s,;'\"\\]+")
_PROGRAM_FLAG = re.compile(r"--?(?P<name>[A-Za-z][\w.-]*)(?:=(?P<value>.*))?", re.DOTALL)
# The setting of a bucket, by the name of the argument with it. The first match counts: `train_output_dir` is written.
_BUCKET_SETTINGS = {
    "checkpoint_buckets": re.compile(r"job_?dir|model_?dir|output|checkpoint|ckpt|log_?dir|summar|export|save"),
    "data_buckets": re.compile(r"data|train|input|eval|valid|test|tfrecord|image|record|example|vocab"),
    "buckets": re.compile(""),
}


def find_buckets(job: TrainingJob) -> tuple[dict[str, dict[str, str]], list[tuple[JobField, str]]]:
    """Return the locations in Cloud Storage for each setting, with what names them; and the invalid ones with the reason."""
    buckets: dict[str, dict[str, str]] = {"data_buckets": {}, "checkpoint_buckets": {}, "buckets": {}}
    refused: list[tuple[JobField, str]] = []
    for field, setting, url, origin in _bucket_locations(job):
        # A pattern of files is cut to its folder.
        wild = re.search(r"[*?\[{#]", url)
        try:
            path = BucketPath.parse(url[: url.rfind("/", 0, wild.start())] if wild else url)
            buckets[setting].setdefault(str(path), origin)
        except InvalidInputError as error:
            refused.append((field, error.message))
    packages = (one for one in job.fields.get("packageUris", ()) if not _is_package(one))
    refused += ((one, f"`{escape_unprintable(one.value)}` is not a package in Cloud Storage") for one in packages)
    return buckets, refused


def _is_package(field: JobField) -> bool:
    return _GS_URL.fullmatch(field.value) is not None and field.value.isprintable()


def _bucket_locations(job: TrainingJob) -> Iterator[tuple[JobField, str, str, str]]:
    """Yield what looks like a location: its field, the setting for it, its URL, and the key and option that name it."""
    if field := job.text("jobDir"):
        yield field, "checkpoint_buckets", field.value, field.origin
    flag_before = ""
    for field in job.fields.get("args", ()):
        match = _PROGRAM_FLAG.fullmatch(field.value)
        flag = match["name"] if match else flag_before
        flag_before = match["name"] if match and match["value"] is None else ""
        name = flag.lower().replace("-", "_")
        setting = next(setting for setting, words in _BUCKET_SETTINGS.items() if words.search(name))
        for url in _GS_URL.findall(field.value):
            yield field, setting, url, field.origin + (f" --{flag}" if flag else "")


@dataclass(frozen=True, slots=True)
class Replacement:
    """The TPU VM that replaces a job's TPU. `requested` is the job's own type, which its region may lack."""

    requested: AcceleratorType
    type: AcceleratorType
    zone: str
    version: str
    has_tensorflow: bool


def find_replacement(job: TrainingJob) -> Replacement | None:
    """Return the TPU VM that replaces the TPU; None if the service did not have that TPU."""
    offer, type_, count = load_service_offer(), job.accelerator("type"), job.accelerator("count")
    name = offer["types"].get(type_.value, {}).get(count.value) if type_ and count else None
    requested = find_accelerator_type(name if type_ or count else offer["default_type"])
    if requested is None:
        return None
    chosen, zone = next(_places(requested, job.region))
    version = job.text("runtimeVersion")
    # Images with an old TensorFlow do not support newer generations.
    image = offer["runtimes"].get(version.value) if version and chosen is requested else None
    if image is None:
        return Replacement(requested, chosen, zone, chosen.runtime_version, has_tensorflow=False)
    return Replacement(requested, chosen, zone, image + ("-pod" if chosen.is_slice else ""), has_tensorflow=True)


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
    refused: Sequence[tuple[JobField, str]]
    replacement: Replacement | None
    target: str
    command: str | None

    def result(
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
    yield case.result(Level.WARNING, None, text, *remedies, why=why)


@check_rule("TPU803", "Type of TPU")
def accelerator_type_was_offered(case: JobCase) -> Iterator[RuleResult]:
    """Check that acceleratorConfig names a TPU that the service offered, by type and number of cores.

    TPU_V2 and TPU_V3 had 8, TPU_V2_POD 32, 128, 256 and 512, TPU_V3_POD 32, 128 and 256 (documentation). Any other is an
    error, and so is a count without a type, or a type without a count: no TPU VM is known to replace it.
    """
    type_, count, types = case.job.accelerator("type"), case.job.accelerator("count"), load_service_offer()["types"]
    if case.replacement:
        return
    if type_ is None or type_.value not in types:
        text = f"`{type_.written}`: no such TPU was offered" if type_ else "`acceleratorConfig` has no `type`"
        yield case.result(Level.ERROR, type_ or count, text, f"set `type` to {join_words(types, last='or')}")
    else:
        counts = join_words(types[type_.value], last="or")
        text = f"{f'`{count.written}`' if count else 'no `count`'}: `{type_.value}` had {counts} cores"
        yield case.result(Level.ERROR, count or "workerConfig.acceleratorConfig", text, f"set `count` to {counts}")


@check_rule("TPU808", "Runtime version")
def runtime_version_has_image(case: JobCase) -> Iterator[RuleResult]:
    """Check that a TPU VM image has the TensorFlow of the runtime version; else a warning.

    TensorFlow 2.6 to 2.9 and 2.11 have their own images, with `-pod` for slices (documentation, lists of 2022 to 2024; a zone
    may no longer offer them). For any other version, and on a newer type, the default image of the type is used, without
    TensorFlow.
    """
    field, replacement = case.job.text("runtimeVersion"), case.replacement
    if field and replacement and not replacement.has_tensorflow:
        text = f"`{field.written}`: no image with its TensorFlow is known for {replacement.type.name}"
        listing = f"tpuctl versions --zone {replacement.zone}"
        choose = Remedy("choose an image with a suitable TensorFlow, and set `version` to it", listing)
        yield case.result(Level.WARNING, field, f"{text}, and `{replacement.version}` has none", choose)


@check_rule("TPU812", "Zone that offers the type")
def zone_offers_type(case: JobCase) -> Iterator[RuleResult]:
    """Check that a zone of the job's region offers the TPU as a TPU VM, according to the table of accelerators.

    A warning if none does: then a newer type with as many chips in the same region is used, so that the data stays
    near, or, if there is none, the same type in another region.
    """
    made, field, region = case.replacement, case.job.text("region") or "region", case.job.region
    if made is None:
        return
    listing = Remedy("list the zones that offer the TPU now", f"tpuctl types {made.type.name}")
    if made.type is not made.requested:
        instead = f"using {made.type.name} in {made.zone} ({_chips_and_memory(made.type)})"
        text, why = f"no zone of {region} offers {made.requested.name}: {instead}", _chips_and_memory(made.requested)
        yield case.result(Level.WARNING, field, text, listing, why=f"{made.requested.name} had {why}")
    elif region and region_of_zone(made.zone) != region:
        instead = f"using {made.type.name} in {made.zone}"
        text = f"no zone of {region} offers {made.type.name}, nor a newer TPU with as many chips: {instead}"
        why = "data in the old region is read across regions, which is billed and slow"
        yield case.result(Level.WARNING, field, text, listing, why=why)


def _chips_and_memory(type_: AcceleratorType) -> str:
    return f"{type_.chips} chips with {type_.generation.hbm_gib_per_chip} GiB each"


@check_rule("TPU817", "Keys that are not translated")
def keys_are_translated(case: JobCase) -> Iterator[RuleResult]:
    """Report in warnings all keys that have no equivalent in tpuctl.yaml, and invalid locations in Cloud Storage.

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
        yield case.result(Level.WARNING, next(iter(left)), f"not translated: {listed}", advice)
    for refused, reason in case.refused:
        yield case.result(Level.WARNING, refused, reason, "write it like `gs://BUCKET/PREFIX`")


JOB_RULES = (
    service_has_ended,
    accelerator_type_was_offered,
    runtime_version_has_image,
    zone_offers_type,
    keys_are_translated,
)


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
    replacement, (buckets, refused) = find_replacement(job), find_buckets(job)
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
        file = "\n".join([*_settings_lines(job, replacement, buckets, command), ""])
    report = evaluate_rules(JobCase(job, refused, replacement, target, command), JOB_RULES, accepted=accepted)
    return JobTranslation(source, report, replacement, file, command)


def _settings_lines(
    job: TrainingJob, made: Replacement, buckets: Mapping[str, Mapping[str, str]], command: str
) -> Iterator[str]:
    """Yield the lines of the new file, each with the key that it comes from."""
    yield f"# Made from {escape_unprintable(job.source)}, a job of AI Platform Training, by `tpuctl check --ai-platform`."
    # An unprintable character, such as a newline, would end a comment; a command with an escaped one would be another command.
    shown = command if command.isprintable() else "tpuctl run … (see `tpuctl check --ai-platform`)"
    yield from ("#", "# Instead of `gcloud ai-platform jobs submit training`:", f"#   {shown}", "")
    type_, count, region = job.accelerator("type"), job.accelerator("count"), job.text("region")
    origins = [field.origin for field in (type_ or job.text("scaleTier") or job.text("workerType"), count) if field]
    moved = made.type is not made.requested
    instead = f" instead of {made.requested.name}, which the region lacks" if moved else ""
    yield f"type: {made.type.name}  # {', '.join(origins)}{instead}"
    elsewhere = ", where no zone offers it" if region_of_zone(made.zone) != job.region else ""
    yield f"zone: {made.zone}  # {region.origin + elsewhere if region else 'a guess: the file names no region'}"
    version = job.text("runtimeVersion") if made.has_tensorflow else None
    yield f"version: {made.version}  # {version.origin if version else 'the default of the type'}"
    for key, setting in load_service_offer()["settings"].items():
        if field := job.text(key):
            try:
                parse_setting(SETTINGS[setting], field.value)
                yield f"{setting}: {_scalar(field.value)}  # {field.origin}"
            except ValueError as error:
                yield f"# {setting} is not translated: {escape_unprintable(str(error))}  # {field.origin}"
    labels = {key.removeprefix("labels."): job.fields[key][0] for key in job.fields if key.startswith("labels.")}
    try:
        check_labels({key: field.value for key, field in labels.items()}, kept=1)
        yield from ["labels:"] if labels else []
        yield from (f"  {_scalar(key)}: {_scalar(one.value)}  # line {one.line}" for key, one in labels.items())
    except InvalidInputError as error:
        yield f"# labels are not translated: {escape_unprintable(error.message)}"
    for setting, urls in buckets.items():
        yield from [f"{setting}:"] if urls else []
        yield from (f"  - {_scalar(url)}  # {origin}" for url, origin in urls.items())
    packages = [
        one for one in job.fields.get("packageUris", ()) if _GS_URL.fullmatch(one.value) and one.value.isprintable()
    ]
    if packages:
        # The first line that fails must be the one that is reported.
        yield from (f"# {packages[0].origin}", "setup: |", "  set -e", '  cd "$(mktemp -d)"')
        yield "  " + shlex.join(["gcloud", "storage", "cp", *(one.value for one in packages), "."])
        yield "  " + shlex.join(["pip3", "install", *(f"./{one.value.rpartition('/')[2]}" for one in packages)])


# What YAML 1.1 reads as this exact text in every position.
_PLAIN_SCALAR = re.compile(r"[A-Za-z][A-Za-z0-9_./@-]*(?::[A-Za-z0-9_./@-]+)*")
_YAML_WORDS = frozenset({"null", "true", "false", "yes", "no", "on", "off", "y", "n"})


def _scalar(text: str) -> str:
    if _PLAIN_SCALAR.fullmatch(text) and text.lower() not in _YAML_WORDS:
        return text
    # JSON's escapes are YAML's too, but YAML takes fewer characters as they are.
    quoted = json.dumps(text, ensure_ascii=False)
    return "".join(char if char.isprintable() else f"\\U{ord(char):08X}" for char in quoted)
