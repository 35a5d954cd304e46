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
def test_type_zone_and_image_of_translation_fit(job: dict[str, Any]) -> None:
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
        (config_of("TPU_V2 with 16 cores"), "TPU803", 9, "`count: 16`: `TPU_V2` had 8 cores"),
        (config_of("TPU_V2 without a count"), "TPU803", 7, "no `count`: `TPU_V2` had 8 cores"),
        (
            config_of("TPU_V3_POD with 64 cores"),
            "TPU803",
            9,
            "`count: 64`: `TPU_V3_POD` had 32, 128 or 256 cores",
        ),
        (
            "scaleTier: BASIC_TPU\nscheduling:\n  maxRunningTime: 2h\n",
            "TPU817",
            2,
            "not translated: `scheduling` (line 2)",
        ),
        (config_of("2 workers"), "TPU817", 5, "not translated: `workerCount` (line 5)"),
        (
            config_of("a parameter server"),
            "TPU817",
            10,
            "not translated: `parameterServerType` (line 10) and `parameterServerCount` (line 11)",
        ),
        (
            config_of("runtime 2.5"),
            "TPU808",
            3,
            "`runtimeVersion: 2.5`: no image with its TensorFlow is known for v2-8, and `tpu-ubuntu2204-base` has none",
        ),
        (
            config_of("a v3 pod in us-central1, where none is offered now"),
            "TPU812",
            10,
            "no zone of us-central1 offers v3-32: using v6e-16 in us-central1-b (16 chips with 32 GiB each)",
        ),
        (
            config_of("hyperparameters, a time limit, and unknown keys"),
            "TPU817",
            3,
            (
                "not translated: `hyperparameters` (line 3), `scheduling.maxWaitTime` (line 7), `masterTyp` (line 8) "
                "and `foo` (line 9)"
            ),
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


def test_written_file_says_that_the_type_or_the_region_changed() -> None:
    newer = translate_job(config_of("a v3 pod in us-central1, where none is offered now"), "config.yaml")
    moved = translate_job(config_of("a region of a continent without v2"), "config.yaml")

    assert (newer.file or "").splitlines()[5] == (
        "type: v6e-16  # trainingInput.workerConfig.acceleratorConfig.type, line 8, "
        "trainingInput.workerConfig.acceleratorConfig.count, line 9 instead of v3-32, which the region lacks"
    )
    assert (moved.file or "").splitlines()[6] == (
        "zone: us-central1-a  # trainingInput.region, line 10, where no zone offers it"
    )


def test_remedies_name_the_command_the_check_and_the_change_of_code() -> None:
    """The check of the new file says which roles the TPU VM's own account needs on the buckets."""
    translation = translate_job(config_of("runtime 2.8 on a slice"), "config.yaml", target="new.yaml")
    (found,) = (finding.found for finding in translation.report.findings if finding.id == "TPU801")

    assert [(remedy.text.partition(",")[0], remedy.command) for remedy in found.remedies] == [
        ("run it on your own TPU VM", translation.command),
        ("first check that the TPU VM's own account may use the buckets", "tpuctl check new.yaml"),
        ("in the code write `TPUClusterResolver(os.environ['TPU_NAME'])`", None),
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
            config_of("hyperparameters, a time limit, and unknown keys"),
            "tpuctl run --up tpuctl.yaml --rm --timeout=7200s -- python3 -m trainer.task",
        ),
        (
            "scaleTier: BASIC_TPU\njobDir: gs://b/j\npythonModule: m\nargs: [--job-dir, 'gs://b/it s']\n",
            "tpuctl run --up tpuctl.yaml --rm -- python3 -m m --job-dir 'gs://b/it s'",
        ),
        (
            "scaleTier: BASIC_TPU\npythonModule: m\nargs: ['--name', '', x]\njobDir:\n",
            "tpuctl run --up tpuctl.yaml --rm -- python3 -m m --name '' x",
        ),
    ],
)
def test_command_that_replaces_the_submission(config: str, command: str) -> None:
    assert translate_job(config, "config.yaml").command == command


def test_valid_labels_are_translated(tmp_path: Path) -> None:
    good = translate_job(config_of("a whole job with labels"), "config.yaml")
    bad = translate_job(config_of("a whole job whose labels a TPU cannot have"), "config.yaml")

    assert settings_of(good, tmp_path).pairs("labels") == {"team": "vision", "stage": "1"}
    assert settings_of(bad, tmp_path).pairs("labels") == {}
    assert "# labels are not translated: " in (bad.file or "")


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
    assert made.report.fails()


@pytest.mark.parametrize(
    ("type_", "count", "expected"),
    [
        pytest.param("TPU_V3", "8", None, id="offered"),
        pytest.param("TPU_V3", "32", ("error", "32", 9), id="count-of-a-pod"),
        pytest.param("TPU_V3_POD", "32", None, id="offered-pod"),
        pytest.param("TPU_V3_POD", "31", ("error", "31", 9), id="odd-count"),
        pytest.param("TPU_V3_POD", "many", ("error", "many", 9), id="no-number"),
        pytest.param("TPU_V5", "8", ("error", "TPU_V5", 8), id="unknown-type"),
    ],
)
def test_type_and_count_facts_have_values(type_: str, count: str, expected: tuple[str, str, int] | None) -> None:
    findings = translate_job(POD.format(type=type_, count=count), "config.yaml").report.findings
    found = [
        (str(one.level), one.found.facts["value"], one.found.facts["line"]) for one in findings if one.id == "TPU803"
    ]

    assert found == ([expected] if expected else [])


def test_missing_field_has_no_value() -> None:
    without = POD.replace("      count: {count}\n", "").format(type="TPU_V3")
    (about,) = (one for one in translate_job(without, "config.yaml").report.findings if one.id == "TPU803")

    assert (about.level, about.found.facts) == (
        Level.ERROR,
        {"file": "config.yaml", "line": 7, "key": "workerConfig.acceleratorConfig", "value": None},
    )
