"""Jobs of AI Platform Training: findings, the TPU VM that replaces the job, the file and the command."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.check.ai_platform.corpus import JOBS, MNIST, config_of, settings_of
from tpuctl.accelerators import documented_zones_of, parse_accelerator_type
from tpuctl.check.ai_platform import JOB_RULES, translate_job
from tpuctl.check.findings import Level
from tpuctl.check.rules.zone_rules import ImageFit, judge_image

if TYPE_CHECKING:
    from pathlib import Path

_LEVELS = (Level.ERROR, Level.WARNING, Level.NOTE)
EVERYTHING = config_of("an account, a network, packages and places")


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job["name"])
def test_job(job: dict[str, Any], tmp_path: Path) -> None:
    """Each job has its findings and its replacement, and every command can read the new file."""
    translation = translate_job(job["config"], "config.yaml")

    found = {
        str(level): [finding.id for finding in translation.report.of(level)]
        for level in _LEVELS
        if translation.report.of(level)
    }
    assert found == {level: job[level] for level in map(str, _LEVELS) if level in job}
    made = translation.replacement
    assert (f"{made.type.name} {made.zone} {made.version}" if made else "nothing") == job["makes"]
    if made is None:
        assert (translation.file, translation.command) == (None, None)
        return
    read = settings_of(translation, tmp_path)
    assert [read.text(key) for key in ("type", "zone", "version")] == job["makes"].split()


@pytest.mark.parametrize("job", [job for job in JOBS if job["makes"] != "nothing"], ids=lambda job: job["name"])
def test_converted_type_zone_and_image_fit(job: dict[str, Any]) -> None:
    """The zone offers the type according to the table, and the image fits the type."""
    type_, zone, version = job["makes"].split()
    accelerator = parse_accelerator_type(type_)

    assert zone in documented_zones_of(accelerator)
    assert judge_image(version, accelerator).match is ImageFit.FITS


def test_every_rule_finds_something_in_some_job() -> None:
    found = {id_ for job in JOBS for level in map(str, _LEVELS) for id_ in job.get(level, ())}

    assert found == {rule.id for rule in JOB_RULES}
    assert all(rule.title and rule.text for rule in JOB_RULES)


@pytest.mark.parametrize(
    ("config", "id_", "place", "text"),
    [
        (config_of("TPU_V2 with 16 cores"), "TPU802", 9, "`count: 16`: `TPU_V2` had 8 cores"),
        (config_of("TPU_V2 without a count"), "TPU802", 1, "no `count`: `TPU_V2` had 8 cores"),
        (
            config_of("TPU_V3_POD with 64 cores"),
            "TPU802",
            9,
            "`count: 64`: `TPU_V3_POD` had 32, 128 or 256 cores",
        ),
        (
            config_of("a legacy master beside an acceleratorConfig"),
            "TPU804",
            3,
            "`masterType: complex_model_m` is a legacy machine type; `acceleratorConfig` needed a Compute Engine type",
        ),
        (config_of("2 workers"), "TPU805", 5, "`workerCount: 2`: a job had exactly one `cloud_tpu` worker"),
        (
            config_of("a parameter server"),
            "TPU806",
            11,
            "`parameterServerCount: 1`: a job with a TPU had no parameter servers",
        ),
        (
            config_of("a v3 pod in us-central1, where none is offered now"),
            "TPU812",
            10,
            "no zone of us-central1 offers v3-32: using v6e-16 in us-central1-b (16 chips with 32 GiB each)",
        ),
        (
            config_of("hyperparameters, a time limit, and unknown keys"),
            "TPU818",
            8,
            "unknown keys are ignored: `masterTyp` (line 8, like `masterType`) and `foo` (line 9)",
        ),
    ],
)
def test_finding_names_the_line(config: str, id_: str, place: int, text: str) -> None:
    (found,) = (
        finding.found for finding in translate_job(config, "config.yaml").report.of(*_LEVELS) if finding.id == id_
    )

    assert (found.subject, found.text, found.facts["line"]) == (f"config.yaml line {place}", text, place)


def test_written_file_says_where_each_line_comes_from() -> None:
    translation = translate_job(EVERYTHING, "config.yaml")

    assert translation.file == (
        "# Made from config.yaml, a job of AI Platform Training, by `tpuctl check --ai-platform`.\n"
        "#\n"
        "# Instead of `gcloud ai-platform jobs submit training`:\n"
        "#   tpuctl run --up tpuctl.yaml --rm -- python3 -m trainer.task --train-files "
        "'gs://data/train/part-*.tfrecord,gs://data/more' --output_dir=gs://ckpt/out gs://misc --steps 1000 "
        "--job-dir=gs://ckpt/job-1\n"
        "\n"
        "type: v2-8  # trainingInput.scaleTier, line 2\n"
        "zone: us-central1-b  # trainingInput.region, line 16\n"
        "version: tpu-vm-tf-2.11.0  # trainingInput.runtimeVersion, line 17\n"
        "service_account: trainer@my-project.iam.gserviceaccount.com  # trainingInput.serviceAccount, line 3\n"
        "network: projects/12345/global/networks/vpc  # trainingInput.network, line 4\n"
        "data_buckets:\n"
        "  - gs://data/train  # trainingInput.args, line 11 --train-files\n"
        "  - gs://data/more  # trainingInput.args, line 11 --train-files\n"
        "checkpoint_buckets:\n"
        "  - gs://ckpt/job-1  # trainingInput.jobDir, line 8\n"
        "  - gs://ckpt/out  # trainingInput.args, line 12 --output_dir\n"
        "buckets:\n"
        "  - gs://misc  # trainingInput.args, line 13\n"
        "# trainingInput.packageUris, line 6\n"
        "setup: |\n"
        "  set -e\n"
        '  cd "$(mktemp -d)"\n'
        "  gcloud storage cp gs://staging/trainer-0.1.tar.gz gs://staging/more-0.2-py3-none-any.whl .\n"
        "  pip3 install ./trainer-0.1.tar.gz ./more-0.2-py3-none-any.whl\n"
    )


def test_account_gets_the_roles_that_its_buckets_need() -> None:
    """A bucket that is only read, like that of the packages, needs no write access."""
    (found,) = (f.found for f in translate_job(EVERYTHING, "config.yaml").report.findings if f.id == "TPU814")

    member = "--member=serviceAccount:trainer@my-project.iam.gserviceaccount.com"
    assert [remedy.command for remedy in found.remedies] == [
        f"gcloud storage buckets add-iam-policy-binding gs://{bucket} {member} --role=roles/storage.{role} --condition=None"
        for bucket, role in (
            ("ckpt", "objectUser"),
            ("data", "objectViewer"),
            ("misc", "objectUser"),
            ("staging", "objectViewer"),
        )
    ]


@pytest.mark.parametrize(
    ("config", "command"),
    [
        (
            MNIST.replace("official.vision.image_classification.mnist_main", "trainer.task"),
            (
                "tpuctl run --up tpuctl.yaml --rm -- python3 -m trainer.task --distribution_strategy=tpu "
                "--data_dir=gs://tfds-data/datasets --model_dir=gs://my-bucket/tpu_mnist_1_output"
            ),
        ),
        (config_of("the guide: a legacy master"), "tpuctl run --up tpuctl.yaml --rm -- python3 -m MODULE"),
        (
            config_of("runtime 2.8 on a slice"),
            "tpuctl run --up tpuctl.yaml --rm --worker=0 --tpu-env --env=TPU_LOAD_LIBRARY=0 -- python3 -m trainer.task",
        ),
        (
            config_of("a prebuilt PyTorch container without a version"),
            "tpuctl run --up tpuctl.yaml --rm --env=PJRT_DEVICE=TPU -- python3 -m trainer.task",
        ),
        (
            config_of("the guide: containers of one's own, TPU v3"),
            "tpuctl run --up tpuctl.yaml --rm -- sudo docker run --rm --privileged --net=host gcr.io/my-project/master:1",
        ),
        (
            config_of("hyperparameters, a time limit, and unknown keys"),
            "tpuctl run --up tpuctl.yaml --rm --timeout=7200s -- python3 -m trainer.task",
        ),
        (
            "scaleTier: BASIC_TPU\njobDir: gs://b/j\npythonModule: m\nargs: [--job-dir, 'gs://b/it s']\n",
            "tpuctl run --up tpuctl.yaml --rm -- python3 -m m --job-dir 'gs://b/it s'",
        ),
        (
            "scaleTier: BASIC_TPU\nmasterConfig:\n  imageUri: own\n  containerCommand: [sh, -c]\n  containerArgs: [./train]\n",
            "tpuctl run --up tpuctl.yaml --rm -- sudo docker run --rm --privileged --net=host --entrypoint=sh own -c ./train",
        ),
    ],
)
def test_command_that_replaces_the_submission(config: str, command: str) -> None:
    assert translate_job(config, "config.yaml").command == command


def test_valid_labels_are_converted(tmp_path: Path) -> None:
    good = translate_job(config_of("a whole job with labels"), "config.yaml")
    bad = translate_job(config_of("a whole job whose labels a TPU cannot have"), "config.yaml")

    assert settings_of(good, tmp_path).pairs("labels") == {"team": "vision", "stage": "1"}
    assert settings_of(bad, tmp_path).pairs("labels") == {}
    assert "# labels are not converted: " in (bad.file or "")


POD = """\
trainingInput:
  scaleTier: CUSTOM
  masterType: n1-highcpu-16
  workerType: cloud_tpu
  workerCount: 1
  workerConfig:
    acceleratorConfig:
      type: {type}
      count: {count}
"""


def test_unknown_tpu_has_no_replacement() -> None:
    """No file and no command is written; the JSON fields are null."""
    made = translate_job(POD.format(type="TPU_V3_POD", count=33), "config.yaml")

    assert made.to_json() == {
        "source": "config.yaml",
        "acceleratorType": None,
        "zone": None,
        "runtimeVersion": None,
        "command": None,
        "file": None,
    }
    assert made.report.worst is Level.ERROR


@pytest.mark.parametrize(
    ("type_", "count", "expected"),
    [
        ("TPU_V3", "8", {"TPU802": "ok", "TPU803": "ok"}),
        ("TPU_V3", "32", {"TPU802": "error", "TPU803": "ok"}),
        ("TPU_V3_POD", "32", {"TPU802": "ok", "TPU803": "ok"}),
        ("TPU_V3_POD", "31", {"TPU802": "error", "TPU803": "ok"}),
        ("TPU_V3_POD", "many", {"TPU802": "error", "TPU803": "ok"}),
        ("TPU_V5", "8", {"TPU803": "error"}),
    ],
)
def test_type_and_count_facts_have_values(type_: str, count: str, expected: dict[str, str]) -> None:
    findings = translate_job(POD.format(type=type_, count=count), "config.yaml").report.findings
    about = {one.id: one for one in findings if one.id in {"TPU802", "TPU803"}}

    assert {id_: str(one.level) for id_, one in about.items()} == expected
    values = {"TPU802": (count, 9), "TPU803": (type_, 8)}
    assert {id_: (one.found.facts["value"], one.found.facts["line"]) for id_, one in about.items()} == {
        id_: values[id_] for id_ in expected
    }


def test_missing_field_has_no_value() -> None:
    without = POD.replace("  masterType: n1-highcpu-16\n", "").replace("  workerCount: 1\n", "")
    findings = translate_job(without.format(type="TPU_V3", count=8), "config.yaml").report.findings

    assert {
        one.id: (one.found.facts["key"], one.found.facts["value"])
        for one in findings
        if one.id in {"TPU804", "TPU805"} and one.level is Level.ERROR
    } == {"TPU804": ("masterType", None), "TPU805": ("workerCount", None)}
