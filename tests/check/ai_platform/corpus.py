"""The corpus of jobs that the tests of AI Platform Training share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from tpuctl.config import sources
from tpuctl.config.settings import resolve_settings
from tpuctl.config.sources import load_config_file

if TYPE_CHECKING:
    from tpuctl.check.ai_platform import JobTranslation
    from tpuctl.config.settings import Settings

JOBS = yaml.load(Path(__file__).with_name("jobs.yaml").read_text("utf-8"), yaml.CSafeLoader)


def config_of(name: str) -> str:
    """Return the configuration of one job."""
    (config,) = (job["config"] for job in JOBS if job["name"] == name)
    return str(config)


MNIST = config_of("the guide: BASIC_TPU with runtime 2.11")


def settings_of(translation: JobTranslation, folder: Path) -> Settings:
    """Return the settings that every command reads from the converted file."""
    path = folder / sources.PROJECT_FILE_NAME
    path.write_text(translation.file or "", "utf-8")
    return resolve_settings({}, {}, load_config_file(path), None, {})
