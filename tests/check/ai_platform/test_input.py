"""Files that are not a job with a TPU, and values that must not corrupt the new file."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.check.ai_platform.corpus import settings_of
from tpuctl.check.ai_platform import translate_job
from tpuctl.errors import InvalidInputError

if TYPE_CHECKING:
    from pathlib import Path

_HINT = "a job with a TPU has `scaleTier: BASIC_TPU`, or `scaleTier: CUSTOM` with `workerType: cloud_tpu`"


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        (
            "trainingInput:\n  scaleTier: BASIC_GPU\n",
            "c.yaml line 2: `scaleTier: BASIC_GPU` is not a job with a TPU",
            _HINT,
        ),
        ("scaleTier: STANDARD_1\n", "c.yaml line 1: `scaleTier: STANDARD_1` is not a job with a TPU", _HINT),
        (
            "trainingInput:\n  scaleTier: CUSTOM\n  masterType: standard_v100\n",
            "c.yaml line 3: `masterType: standard_v100` is not a job with a TPU",
            _HINT,
        ),
        (
            "workerType: n1-standard-8\nworkerConfig: {acceleratorConfig: {type: NVIDIA_TESLA_T4, count: 1}}\n",
            "c.yaml line 2: `type: NVIDIA_TESLA_T4` is not a job with a TPU",
            _HINT,
        ),
        ("scaleTier: CUSTOM\n", "c.yaml line 1: `scaleTier: CUSTOM` is not a job with a TPU", _HINT),
        (
            "trainingInputs:\n  scaleTier: BASIC_TPU\n",
            "c.yaml is not a job with a TPU",
            _HINT,
        ),
        (
            "type: v2-8\nzone: us-central1-b\n",
            "c.yaml is not a job with a TPU",
            _HINT,
        ),
        (
            "trainingInput: [BASIC_TPU]\n",
            "c.yaml is not a job with a TPU",
            _HINT,
        ),
        (
            "",
            "c.yaml is not a job's configuration: it holds no `key: value` lines",
            "name the file that `gcloud ai-platform jobs submit training --config` took",
        ),
        (
            "- scaleTier: BASIC_TPU\n",
            "c.yaml is not a job's configuration: it holds no `key: value` lines",
            "name the file that `gcloud ai-platform jobs submit training --config` took",
        ),
        (
            "scaleTier: BASIC_TPU\nscaleTier: CUSTOM\n",
            "c.yaml line 2: duplicate key `scaleTier`",
            None,
        ),
        ("? [a]\n: b\n", "c.yaml line 1: a key must be a plain word", None),
        ("a: &a [1]\nb: *c\n", "c.yaml line 2 column 4: not valid YAML: found undefined alias", None),
        ("a: &a {b: *a}\n", "c.yaml line 1: the alias `*a` is inside its own anchor", None),
        (f"a: {'[' * 200}{']' * 200}\n", "c.yaml line 1: nested deeper than 32 levels", None),
        (
            "\n".join(["a0: &a0 [1, 1]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9))]),
            "c.yaml line 5: more than 20000 values",
            None,
        ),
        ("#" * (4 << 20) + "\n", "c.yaml: larger than 4096 KiB of text", None),
    ],
)
def test_job_without_tpu_is_refused(text: str, message: str, hint: str | None) -> None:
    with pytest.raises(InvalidInputError) as caught:
        translate_job(text, "c.yaml")

    assert (caught.value.message, caught.value.hint) == (message, hint)


_TEXTS = st.text(max_size=12) | st.sampled_from(
    ["TPU_V2", "8", "gs://b/x y", "cloud_tpu", "2.11", "--data=gs://bucket/'x", "null"]
)
_KEYS = (
    *("masterType", "region", "runtimeVersion", "pythonModule", "jobDir", "serviceAccount", "network", "tpuTfVersion"),
    *("packageUris", "args", "imageUri", "workerConfig", "scheduling", "hyperparameters", "pythonVersion"),
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    labels=st.dictionaries(st.text(max_size=4), _TEXTS, max_size=2),
    fields=st.dictionaries(
        st.sampled_from(_KEYS) | st.text(max_size=6), _TEXTS | st.lists(_TEXTS, max_size=3), max_size=8
    ),
    source=st.text(max_size=8),
)
def test_any_job_gives_a_readable_file(
    labels: dict[str, str], fields: dict[str, Any], source: str, tmp_path: Path
) -> None:
    """Values of every kind keep their text, and none breaks out of its line."""
    config = json.dumps({"labels": labels, "trainingInput": {**fields, "scaleTier": "BASIC_TPU"}})
    translation = translate_job(config, source)

    read = settings_of(translation, tmp_path)

    assert translation.replacement is not None
    assert read.text("type") == translation.replacement.type.name
    for key, field in (("service_account", "serviceAccount"), ("network", "network")):
        if isinstance(value := fields.get(field), str):
            # What no header, URL or argument may hold is left out.
            has_controls = re.search("[\x00-\x1f\x7f-\x9f\u2028\u2029]", value)
            assert read.text(key) == (None if has_controls else value or None)
