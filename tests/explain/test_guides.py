"""Every problem that the guides name, line by line, is answered by a message or a topic with the guide's own advice."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tpuctl.explain.lookup import Topic, find_topic
from tpuctl.explain.messages import message_by_id

LOGS = Path(__file__).with_name("guide_logs")
NOTES = "a user's notes on TPUs, part 4"
ARTICLE = "an article on training with TPUs"

# The German and the Chinese translation name the same problems, in the same order: problem, answers, what the advice must hold.
TENSORFLOW = [
    ("a large model compiles for minutes", "hanging", "5 minutes"),
    ("the server or the program: try the MNIST tutorial", "connection", "MNIST"),
    ("is it the right node, and READY", "connection tf-master", "tpuctl list, tpuctl status, READY"),
    ("not READY, or still no connection: restart it", "connection tf-master", "tpuctl reset"),
    ("wait until it is READY again", "connection tf-master", "tpuctl wait"),
    ("the tutorial fails as well: ask support", "connection", "support, tpuctl bundle"),
    ("the tutorial runs, the model does not: without TPUStrategy", "connection", "TPUStrategy, strategy.scope(), CPU"),
    ("the ssh connection is lost during training", "ssh-lost", "tmux, screen, Cloud Shell, --detach"),
    (
        "the TPU cannot be created: scopes",
        "auth-insufficient-scopes credentials",
        "gcloud auth login --update-adc, scope",
    ),
    ("local files cannot be used", "tf-local-fs local-file-system", "gs://, service account, model_dir"),
    (
        "a data type that is not supported",
        "tf-infeed-dtype dtypes",
        "float32, int32, bfloat16, bool, uint8, string, int64, tf.cast",
    ),
    ("a dynamic shape", "tf-dynamic-shape dynamic-shapes", "drop_remainder=True, compiled"),
    ("an operation that is not available", "tf-op-unavailable", "https://cloud.google.com/tpu/docs/tensorflow-ops"),
    ("out of memory: HBM per core", "hbm-oom memory", "8 GB, 16 GB, weights, gradients"),
    (
        "out of memory: padding, bfloat16, model parallelism",
        "memory model-parallelism",
        "padded, bfloat16, split, experimental",
    ),
    ("the program does not end after an error", "hanging", r"CTRL+\, SIGQUIT"),
    ("CTRL+C waits for the end of the loop", "hanging", "CTRL+C, loop"),
    ("new errors after such an end: reset", "hanging", "tpuctl reset"),
    ("padding costs memory and time", "padding", "memory, time, rounds"),
    ("padding: one rule or the other", "padding", "64, 8 cores, 128, 1024, 128 per core, multiples of 8"),
    ("padding: what a feature dimension is", "padding", "fully connected, output channels, first, last layer"),
    ("less memory: padding and batch size first", "memory", "padded, batch"),
    ("memory grows with weights, batch, layers", "memory", "number of weights, batch size, layers, their number"),
    ("rematerialisation is not always enough", "memory", "rematerialisation"),
    (
        "make the batch smaller slowly",
        "batch-size memory",
        "multiples of 8 per core, 64 on 8 cores, 1024, 128 per core",
    ),
    ("it does not fit with 64 either", "memory layer-size", "fewer layers, smaller, 64"),
    (
        "too few steps per execution",
        "steps-per-execution",
        "steps_per_execution, Model.compile, callbacks, larger|raise",
    ),
    ("logging and checkpoints only after so many steps", "steps-per-execution", "checkpoints saved only after"),
    ("the TPU waits for its input", "input-pipeline", "idle, input pipeline analyzer, TensorBoard"),
    ("input: TFRecord", "input-pipeline", "tf.train.Example, TFRecord, TFRecordDataset"),
    ("input: cache and prefetch", "input-pipeline", "dataset.cache(), dataset.prefetch()"),
    ("input: parallel map", "input-pipeline", "dataset.map(), num_parallel_calls, CPU cores"),
    ("input: prepare once, offline", "input-pipeline", "once, epoch"),
    ("input: the worker's CPU counts", "input-pipeline", "not your own machine"),
    ("slow steps, low use of the MXU", "mxu-utilisation", "MXU, matrix multiplications, convolutions, measure again"),
    ("padding costs speed", "padding mxu-utilisation", "padding, time"),
    ("throughput: larger batches", "batch-size", "64, 1024, largest multiple of 8 per core, learning rate"),
    ("layers that are too small", "layer-size", "128, 512, 256, 20 %, convolutions"),
    ("profile of single operations", "profiling", "trace viewer, per operation"),
    ("accuracy: the batch is split over 8 cores", "accuracy", "8 cores, gradients, averaged, CrossShardOptimizer"),
    ("accuracy: equal to one large batch, or not", "accuracy", "mean, sum, independent"),
    ("accuracy: batch normalisation", "accuracy", "128, 16 samples, 32, 256, 1024"),
    ("a clear difference of one operation is a fault", "accuracy", "report, random"),
    ("determinism: an initial checkpoint from one step", "determinism", "one step, CPU, checkpoint"),
    ("determinism: seeds, also for shuffling", "determinism", "dataset.shuffle(seed, fixed seed"),
    ("determinism: twice on the CPU", "determinism", "twice, 1000, divided by 8, last bit"),
    ("a single core first", "accuracy", "num_shards=1, same|one initial checkpoint, seed"),
    ("then all cores: chance or splitting", "accuracy", "chance, splitting, 256"),
    ("losses over a whole batch", "accuracy", "discriminator"),
    ("gcloud's component manager is disabled", "gcloud-component-manager gcloud-install", "package manager, archive"),
    ("the ssh key has not arrived", "ssh-key-propagation ssh-key", "google_compute_engine, aside"),
    ("ssh times out", "ssh-timeout ssh-key", "firewall, port 22"),
    ("where libtpu logs", "logging", "TPU_LOG_DIR, /tmp/tpu_logs, folders above, stderr"),
    ("logging to disk turned off, in translation", "logging", "disabled, translations"),
    ("what is logged", "logging", "TPU_MIN_LOG_LEVEL, 0 INFO, 1 WARNING, 2 ERROR, 3 FATAL; 0"),
    ("what is shown on stderr", "logging", "TPU_STDERR_LOG_LEVEL, 3 unless set"),
    ("how large a log file becomes", "logging", "TPU_MAX_LOG_SIZE_MB, 1024"),
]
OTHERS = [
    (NOTES, "the versions of client and TPU must match", "versions tf-op-not-registered", "TensorFlow, same version"),
    (NOTES, "shapes must not change while it runs", "dynamic-shapes", "compiling again, fixed size"),
    (NOTES, "input in parallel with tf.data", "input-pipeline", "tf.data, num_parallel_calls"),
    (NOTES, "params are not passed to Estimator", "tf-params-benign", "no action is needed"),
    (NOTES, "std::bad_alloc: too many jobs on the machine", "host-bad-alloc host-memory", "fewer, more memory"),
    (NOTES, "libcurl 28: the network, try again", "gcs-libcurl-28", "network, checkpoint, region, Cloud NAT"),
    (NOTES, "events could not be flushed", "gcs-flush-failed", "reason"),
    (
        NOTES,
        "unable to enqueue: wait a minute",
        "tf-enqueue",
        "a minute, WAIT_FOR_COORDINATOR, by itself, tpuctl reset",
    ),
    (NOTES, "the session is recreated", "tf-preemption-hint", "wait a minute, tpuctl status"),
    (
        NOTES,
        "no connection to the master: reset, or another TPU",
        "tf-master",
        "tpuctl reset, recreate it, recreate, address",
    ),
    (NOTES, "the step was cancelled", "tf-step-cancelled", "training_loop"),
    (NOTES, "vmem: a smaller batch, or a newer version", "vmem-oom memory", "512, 256, newer, HBM"),
    (NOTES, "the compilation failed", "tf-compile-failed", "lines before"),
    (
        ARTICLE,
        "python functions in the input pipeline",
        "unsupported-ops",
        "tf.py_function, tf.numpy_function, from_generator",
    ),
    (
        ARTICLE,
        "a vague gRPC error",
        "tf-remote-handle",
        "py_function, from_generator, distribute_datasets_from_function",
    ),
    (
        ARTICLE,
        "global batches use up main memory",
        "host-memory",
        "4096, 1 MB, 4 GB, distribute_datasets_from_function",
    ),
    (ARTICLE, "operations of one's own in the model", "tf-pyfunc unsupported-ops", "of your own, CUDA, not complete"),
    (ARTICLE, "a variable of unknown shape", "tf-dst-node", "validate_shape=True, fixed batch size"),
    (ARTICLE, "boolean_mask is slow", "dynamic-shapes", "tf.boolean_mask, mask"),
    (ARTICLE, "more memory than on a GPU", "memory padding", "GPU, padded, expansion, memory viewer"),
    (ARTICLE, "mixed precision", "bfloat16", "mixed_bfloat16, weights stay in float32"),
    (ARTICLE, "the input pipeline as a bottleneck", "input-pipeline", "service, idle"),
    (ARTICLE, "more steps per execution change callbacks", "steps-per-execution", "on_batch"),
    (ARTICLE, "learning again after a change", "accuracy bfloat16", "learning rate, NaN"),
]
PROBLEMS = [
    *(
        (f"TensorFlow troubleshooting guide, {language}", *row)
        for language in ("German", "Chinese")
        for row in TENSORFLOW
    ),
    *OTHERS,
]


@pytest.mark.parametrize(("guide", "problem", "answers", "advice"), PROBLEMS)
def test_guide_problem_gets_the_answer_of_the_guide(guide: str, problem: str, answers: str, advice: str) -> None:
    texts = " ".join(_texts_of(id_) for id_ in answers.split())
    wanted = [part.strip() for part in advice.split(",")]
    missing = [part for part in wanted if not any(one.casefold() in texts for one in part.split("|"))]

    assert (guide, problem, missing) == (guide, problem, [])


@pytest.mark.parametrize(
    ("log", "known"),
    [
        ("bad_alloc", ["tf-params-benign", "host-bad-alloc"]),
        ("libcurl", ["gcs-libcurl-28", "gcs-flush-failed"]),
        ("enqueue", ["tf-enqueue", "tf-preemption-hint", "tf-coordinator", "tf-initialized"]),
        ("retrying", ["tf-master"]),
        ("vmem", ["tf-initialized", "tf-step-cancelled", "vmem-oom", "tf-compile-failed"]),
    ],
)
def test_messages_in_guide_logs_are_known(log: str, known: list[str]) -> None:
    """In the order of the log."""
    text = " ".join((LOGS / f"{log}.log").read_text("utf-8").split())
    places = {}
    for id_ in known:
        message = message_by_id(id_)
        assert message is not None, id_
        found = re.search(message.match, text)
        assert found is not None, id_
        places[id_] = found.start()

    assert sorted(known, key=places.__getitem__) == known


def _texts_of(id_: str) -> str:
    """Return all texts of a message or of a topic; of both if both have that id."""
    message, topic = message_by_id(id_), find_topic(id_)
    lines = [message.meaning, *message.remedy] if message is not None else []
    if isinstance(topic, Topic) and topic.id == id_:
        lines += [topic.title, *topic.text, *topic.advice, *topic.commands]
    assert lines, id_
    return " ".join(lines).casefold()
