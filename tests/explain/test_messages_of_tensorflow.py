"""What TensorFlow says on a TPU: each entry known from a text as it was met, and what only looks like it."""

from __future__ import annotations

import pytest

from tests.explain.examples import ids_of_entries, parsed
from tpuctl.explain.messages import Message, MessageRole, message_by_id

# id | action, role, what to look at first | facts; then the text, wrapped, since white space does not count.
EXAMPLES = parsed(r"""
tf-params-benign | none harmless no |
  WARNING:tensorflow:Estimator's model_fn (<function resnet_model_fn at 0x7f44d31fd730>) includes params argument, but
  params are not passed to Estimator.
tf-reinitialized | none harmless no |
  WARNING:tensorflow:TPU system grpc://10.31.158.74:8470 has already been initialized. Reinitializing the TPU can cause
  previously created variables on TPU to be lost.
tf-no-heartbeats | none harmless no |
  W0727 03:46:06.478003 140200254113536 tf_logging.py:120] Worker heartbeats not supported by all workers.  No failure
  handling will be enabled.
tf-initialized | none recovery no | seconds=6
  INFO:tensorflow:Initialized TPU in 6 seconds
tf-coordinator | none recovery no |
  INFO:tensorflow:Configuring worker heartbeat: shutdown_mode: WAIT_FOR_COORDINATOR
tf-found | none recovery no |
  INFO:tensorflow:Found TPU system:
tf-finished | none recovery no |
  INFO:tensorflow:Loss for final step: 0.0251.
tf-master | restart-node cause node-state | address=grpc://10.3.2.2:8470 attempt=12 attempts=120
  WARNING:tensorflow:Failed to connect to the Tensorflow master. The TPU worker may not be ready (still scheduling) or
  the Tensorflow master address is incorrect: got (grpc://10.3.2.2:8470).
  WARNING:tensorflow:Retrying (12/120).
tf-waiting-for-worker | wait progress other-workers-log | task=/job:worker/replica:0/task:3
  I tensorflow/core/distributed_runtime/master.cc:268] CreateSession still waiting for response from worker:
  /job:worker/replica:0/task:3
tf-node-lost | recreate-node cause node-state | state=PREEMPTED
  TPU node b'trainer' reached an unrecoverable state PREEMPTED, terminating the session now.
tf-node-unhealthy | restart-node cause node-health | health=UNHEALTHY_MAINTENANCE
  TPUPollingThread found TPU b'au2018-3' in state READY, and health UNHEALTHY_MAINTENANCE.
tf-node-not-ready | wait cause node-state | state=CREATING
  RuntimeError: TPU "b'trainer'" is not yet ready; state: "CREATING"
tf-name-unknown | fix-request cause no | name=trainer
  ValueError: Could not lookup TPU metadata from name 'b'trainer''. Please doublecheck the tpu argument in the
  TPUClusterResolver constructor. Exception: <HttpError 404
tf-no-name | fix-training-code cause no |
  ValueError: Please provide a TPU Name to connect to.
tf-no-cores | restart-node cause node-state |
  RuntimeError: Cannot find any TPU cores in the system (master address ). This usually means the master address is
  incorrect or the TPU worker has some problems. Available devices: [_DeviceAttributes(/job:localhost/device:CPU:0
tf-num-shards | fix-training-code cause no |
  ValueError: TPUConfig.num_shards is not set correctly. According to TPU system metadata
tf-not-initialized | restart-node cause node-health |
  ValueError: Fail to initialize TPU system with master (grpc://10.1.2.3:8470). Please double check the TPU system is
  functional.
tf-shutdown-hook | recreate-node cause node-state |
  INFO:tensorflow:ShutdownHook: lame workers found: HeartbeatManager(/job:worker/replica:0/task:0/device:CPU:0)
tf-preemption-hint | wait symptom node-state | "error=Socket closed"
  INFO:tensorflow:An error was raised. This may be due to a preemption in a connected worker or parameter server. The
  current session will be closed and a new session will be created. This error may also occur due to a gRPC failure
  caused by high memory or network bandwidth usage in the parameter servers. If this error occurs repeatedly, try
  increasing the number of parameter servers assigned to the job. Error: Socket closed
tf-context-id | restart-node symptom node-state | context=12465293436922014039
  (1) Unavailable: Unable to find a context_id matching the specified one (12465293436922014039). Perhaps the worker was
  restarted, or the context was GC'd?
tf-session-missing | restart-node symptom node-state | session=060675ee6ea3ba34
  RuntimeError: Aborted: Session 060675ee6ea3ba34 is not found.
tf-socket-closed | restart-node symptom node-state |
  W tensorflow/core/distributed_runtime/rpc/grpc_remote_master.cc:157] RPC failed with status = "Unavailable: Socket
  closed" and grpc_error_string = "{"created":"@1585904445.480666714","description":"Error received from peer"
tf-all-addresses | restart-node symptom node-state | address=ipv4:10.1.2.3:8470
  failed to connect to all addresses; last error: UNKNOWN: ipv4:10.1.2.3:8470: Failed to connect to remote host
tf-enqueue | restart-node cause no | "queue=0000:00:05.0 PE0 C1 MC2 TN0 Queue TENSOR_CORE_INFEED" state=FAILED
  FailedPreconditionError (see above for traceback): Unable to enqueue when not opened, queue: [0000:00:05.0 PE0 C1 MC2
  TN0 Queue TENSOR_CORE_INFEED]. State is: FAILED
tf-step-cancelled | none wrapper no |
  INFO:tensorflow:Error recorded from outfeed: Step was cancelled by an explicit call to `Session::Close()`.
tf-infeed-error | none wrapper no |
  Error occurred during infeed/outfeed.  This may be due to a compile error in the main session.  Waiting for a short
  time for the main session to come back.
tf-stale-tpu-resource | restart-node cause no |
  tensorflow.python.framework.errors_impl.AlreadyExistsError: From /job:worker/replica:0/task:0: 2 root error(s) found.
  (0) Already exists: Resource localhost/tpu_proto_cache/N10tensorflow17TpuIsaProtoLookupE
tf-attribute-unknown | fix-training-code cause no | attribute=Truncate
  tensorflow.python.framework.errors_impl.InvalidArgumentError: NodeDef mentions attr 'Truncate' not in Op<name=Cast;
tf-op-not-registered | fix-training-code cause no | op=AnonymousSeedGenerator machine=n-c0cd0e2d-w-0
  NotFoundError: 'AnonymousSeedGenerator' is neither a type of a primitive operation nor a name of a function registered
  in binary running on n-c0cd0e2d-w-0. Make sure the operation or function is registered in the binary
tf-local-fs | fix-bucket cause no |
  InvalidArgumentError: Unimplemented: File system scheme '[local]' not implemented
tf-infeed-dtype | fix-training-code cause no | dtype=string
  TypeError: <dtype: 'string'> is not a supported TPU infeed type. Supported types are: [tf.float32, tf.int32
tf-dtype-unsupported | fix-training-code cause no | dtype=string op=Pad_1:0
  InvalidArgumentError: Unsupported data type for TPU: string, caused by output Pad_1:0 [Op:__inference_train_function_67]
tf-dynamic-shape | fix-training-code cause no | dimension=d
  ValueError: shape [Shape] must have a fixed size for dimension
  d that is known at graph construction time.
tf-dynamic-dimension | fix-training-code cause no |
  Compilation failure: Dynamic Spatial Convolution is not supported: %convolution.106 = f32[<=128,12,12,32]
tf-no-program | fix-training-code cause no |
  F tensorflow/core/tpu/kernels/tpu_program_group.cc:86] Check failed: xla_tpu_programs.size() > 0 (0 vs. 0)
tf-checkpoint-differs | fix-training-code cause no |
  Restoring from checkpoint failed. This is most likely due to a Variable name or other graph key that is missing from
  the checkpoint.
tf-compile-constant | fix-training-code cause no | input=2 op=ScatterNd
  (0) INVALID_ARGUMENT: {{function_node __inference_train_function_84983}} Input 2 to node
  `CTCLoss/ctc-loss/ctc_state_trans/ScatterNd_1` with op ScatterNd must be a compile-time constant.
tf-pyfunc | fix-training-code cause no | op=PyFunc
  (0) Invalid argument: {{function_node __inference_train_function_117771}} Detected unsupported operations when trying to
  compile graph cluster_train_function_10723333522471149816[] on XLA_TPU_JIT: PyFunc (No registered 'PyFunc' OpKernel for
  XLA_TPU_JIT devices compatible with node {{node model/segLoss/PyFunc}}){{node model/loss/PyFunc}}
tf-op-unavailable | fix-training-code cause no | op=OpName
  NotFoundError: No registered 'OpName' OpKernel for XLA_TPU_JIT
  devices compatible with node
tf-dst-node | fix-training-code cause no |
  tensorflow.python.framework.errors_impl.InvalidArgumentError: Dst node should be assigned to an allowed device.
tf-remote-handle | fix-training-code symptom no |
  Ignoring an error encountered when deleting remote tensors handles: Invalid argument: Unable to find the relevant tensor
  remote_handle: Op ID: 22643, Output num: 7Additional GRPC error information from remote target
tf-batch-divisible | fix-training-code cause no | batch=30 replicas=8
  ValueError: train batch size 30 must be divisible by number of replicas 8
tf-reshape | fix-training-code cause no | values=100 wanted=50
  Compilation failure: Input to reshape is a tensor with 100 values, but the requested shape has 50
tf-input-ended | fix-training-code cause no |
  ERROR:tensorflow:Error recorded from infeed: End of sequence
tf-nan-loss | fix-training-code cause no |
  E0504 13:26:51.418789 140562679776640 basic_session_run_hooks.py:768] Model diverged with loss = NaN.
tf-compile-failed | fix-training-code wrapper no |
  TPU compilation failed
  [[{{node tpu_compile_succeeded_assert/_2211098028679383727/_435}} = TPUCompileSucceededAssert[]
tf-oom-hbm-seen | fix-training-code symptom no | seconds=31
  WARNING:root:Symptom: a recent HBM OOM has occurred ~31 seconds ago. The model script will terminate automatically.
tf-oom-runtime-seen | host-memory symptom no | seconds=12
  WARNING:root:Symptom: a recent runtime OOM has occurred ~12 seconds ago. The model script will terminate automatically.
tf-schedule-failed | capacity-try-elsewhere cause no |
  RuntimeError: Failed to schedule TPU: {}
tf-still-waiting | wait progress no |
  INFO:tensorflow:Still waiting for provisioning of TPU VM instance.
tf-missing-config | fix-request cause no |
  Missing TPU_CONFIG, use CPU/GPU for training.
""")

# Other wordings of the same messages: other versions, nested in other errors, cut short.
VARIANTS = [
    ("tf-initialized", "INFO:tensorflow:Finished initializing TPU system."),
    ("tf-master", "W0108 00:47:24.462295 4582849984 tpu_system_metadata.py:98] Retrying (5/288)."),
    ("tf-master", "WARNING:tensorflow:Retrying (10/120)."),
    ("tf-node-lost", "WARNING:tensorflow:TPUPollingThread found TPU b'au' in state TERMINATED, and health None."),
    ("tf-node-unhealthy", 'RuntimeError: TPU "trainer" is unhealthy: "TIMEOUT"'),
    ("tf-node-unhealthy", 'Timed out waiting for TPU "trainer" to become healthy'),
    ("tf-no-cores", "RuntimeError: Could not find any TPU devices"),
    ("tf-socket-closed", "tensorflow.python.framework.errors_impl.UnavailableError: Socket closed"),
    (
        "tf-socket-closed",
        "UnavailableError: 2 root error(s) found.\n  (0) Unavailable: Socket closed\n  (1) Unavailable: x",
    ),
    ("tf-socket-closed", "UNAVAILABLE: From /job:worker/replica:0/task:0: Socket closed"),
    ("tf-socket-closed", '\\"grpc_message\\":\\"Socket closed\\",\\"grpc_status\\":14}'),
    ("tf-socket-closed", "Failed to meet rendezvous 'test_loss': Socket closed (14)"),
    ("tf-socket-closed", "Socket closed"),
    ("tf-socket-closed", "it usually indicates some op in the graph gets an error: Socket closed"),
    ("tf-all-addresses", "Failed to meet rendezvous 'test_loss': failed to connect to all addresses (14)"),
    ("tf-op-not-registered", "Not found: Op type not registered 'XRTMemoryInfo' in binary running on n-897fcadd-w-0."),
    ("tf-local-fs", "File system scheme '[local]' not implemented (file: '/tmp/model/checkpoint')"),
    ("tf-infeed-dtype", "TypeError: DataType is not a supported TPU infeed type."),
    ("tf-dtype-unsupported", "Unsupported data type for TPU: double, caused by output cond_8/Merge:0"),
    ("tf-dynamic-dimension", "Compilation failure: Asked to propagate a dynamic dimension from hlo %concatenate.3"),
    ("tf-batch-divisible", "AssertionError: batch_size must be divisible by the number of TPU cores in use (5 vs 8)"),
    ("tf-batch-divisible", "ValueError: Batch size must be divisible by number of replicas : 8"),
    ("tf-reshape", "Input to reshape is a tensor with 16016 values, but the requested shape requires a multiple of 3"),
    ("tf-nan-loss", "basic_session_run_hooks.NanLossDuringTrainingError: NaN loss during training."),
]

# Ordinary lines that come near.
HARMLESS = [
    "TPUPollingThread found TPU b'au2018-3' in state READY, and health HEALTHY.",
    "DEBUG:websockets:connection is CLOSED: Socket closed by peer",
    "[debug] jupyter websocket: Socket closed, will reconnect",
    "Retrying (1/3)...",
    "Download failed. Retrying (12/20).",
    "WARNING: Retrying (Retry(total=4, connect=None)) after connection broken",
    "error: array bound must be a compile-time constant",
    "INFO:tensorflow:Using config: {'_model_dir': 'gs://b/m', '_session_creation_timeout_secs': 7200, 'preemption': True}",
    "INFO:tensorflow:Initialized dataset iterators in 0 seconds",
    "INFO:tensorflow:Init TPU system",
    "GrpcSession::ListDevices will initialize the session with an empty graph and other defaults because the session",
    "the batch size is divisible by the number of replicas",
    "Session is not found in the cache, making a new one",
    "INFO:tensorflow:Waiting for TPU compilation to finish",
    "loss = 0.3, step = 100 (3.1 sec), hbm used 7.1G of 8G",
]


def test_every_entry_has_one_example() -> None:
    assert [example.id for example in EXAMPLES] == ids_of_entries("tf-")


@pytest.mark.parametrize("effect", ["tf-socket-closed", "tf-preemption-hint", "tf-context-id", "tf-session-missing"])
def test_consequence_of_a_lost_worker_is_never_a_cause(effect: str) -> None:
    """The state of the node and the death of its processes explain it; it explains none of them."""
    found = message_by_id(effect)

    assert isinstance(found, Message)
    assert (found.role, found.explained_by >= {"tf-node-lost", "tf-shutdown-hook", "oom-kill-137"}) == (
        MessageRole.SYMPTOM,
        True,
    )
