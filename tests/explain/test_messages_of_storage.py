"""What programs say of Cloud Storage: each entry known from a text as it was met, and what only looks like it."""

from __future__ import annotations

from tests.explain.examples import ids_of_entries, parsed

# id | action, role, what to look at first | facts; then the text, wrapped, since white space does not count.
EXAMPLES = parsed(r"""
gcs-retrying | none harmless no | attempt=1 attempts=10
  I tensorflow/core/platform/cloud/retrying_utils.cc:73] The operation failed and will be automatically retried in
  0.159809 seconds (attempt 1 out of 10), caused by: Unavailable: Error executing an HTTP request: libcurl code 6 meaning
  'Couldn't resolve host name', error details: Couldn't resolve host 'metadata'
gcs-no-token | fix-auth symptom no |
  W tensorflow/core/platform/cloud/google_auth_provider.cc:184] All attempts to get a Google authentication bearer token
  failed, returning an empty token. Retrieving token from files failed with "NOT_FOUND: Could not locate the credentials
  file.". Retrieving token from GCE failed with "FAILED_PRECONDITION: Error executing an HTTP request: libcurl code 6
  meaning 'Couldn't resolve host name', error details: Could not resolve host: metadata.google.internal".
gcs-denied | fix-bucket cause no | account=s@cloud-tpu.iam.gserviceaccount.com perm=storage.objects.list bucket=object.propel.ai
  "message": "s@cloud-tpu.iam.gserviceaccount.com does not have storage.objects.list access to object.propel.ai."
gcs-requester-pays | fix-bucket cause no |
  "message": "Bucket is a requester pays bucket but no user project provided."
gcs-bucket-missing | fix-bucket cause no | bucket=my-data
  google.api_core.exceptions.NotFound: 404 GET https://storage.googleapis.com/storage/v1/b/my-data/o?projection=noAcl:
  The specified bucket does not exist.
gcs-bucket-name | fix-bucket cause no | bucket=YOUR_BUCKET
  "message": "Invalid bucket name: 'YOUR_BUCKET'"
gcs-object-missing | fix-bucket cause no | bucket=xusongpei1995 path=dataset_train.tf
  "message": "No such object: xusongpei1995/dataset_train.tf"
gcs-rate-limit | fix-training-code cause no |
  "message": "The total number of changes to the object b/models/model.ckpt-8000_temp/ exceeds the rate limit. Please
  reduce the rate of create, update, and delete requests."
gcs-libcurl-28 | fix-bucket cause no | bucket=my_results
  INFO:tensorflow:Error recorded from outfeed: All 10 retry attempts failed. The last failure: Unavailable: Error
  executing an HTTP request: libcurl code 28 meaning 'Timeout was reached', error details: SSL connection timeout
  when initiating an upload to gs://my_results/resnet-tpu-framework/events.out.tfevents.1546877726.n-ec458f18-w-0.v2
gcs-stalled | fix-bucket cause no | seconds=61
  E tensorflow/core/platform/cloud/curl_http_request.cc:614] The transmission  of request 0x2953d440 (URI:
  https://www.googleapis.com/storage/v1/b/t5-data/o/x) has been stuck at 0 of 0 bytes for 61 seconds and will be aborted.
gcs-name-lookup | fix-bucket cause no | name=metadata.google.internal
  FAILED_PRECONDITION: Error executing an HTTP request: libcurl code 6 meaning 'Couldn't resolve host name', error
  details: Could not resolve host: metadata.google.internal
gcs-certificates | fix-bucket cause no | path=/etc/ssl/certs/ca-certificates.crt
  Error executing an HTTP request: libcurl code 77 meaning 'Problem with the SSL CA cert (path? access rights?)', error
  details: error setting certificate verify locations: CAfile: /etc/ssl/certs/ca-certificates.crt CApath: none
gcs-connection | fix-bucket cause no | code=35 bucket=tfds-data
  AbortedError: All 10 retry attempts failed. The last failure: Unavailable: Error executing an HTTP request: libcurl code
  35 meaning 'SSL connect error', error details: Server aborted the SSL handshake when reading metadata of
  gs://tfds-data/datasets/glue
gcs-unavailable | wait cause no | status=502
  AbortedError: All 10 retry attempts failed. The last failure: Error executing an HTTP request: HTTP response code 502
  with body '<html>
gcs-http-error | fix-bucket wrapper no | status=403
  Permission denied: Error executing an HTTP request: HTTP response code 403 with body '{ "error": {
gcs-gcsfs | fix-bucket wrapper no |
  ERROR   | gcsfs - _request non-retriable exception: b/o/data.zarr, 404
gcs-temporary-file | fix-request cause no |
  tensorflow.python.framework.errors_impl.InternalError: Could not append to the internal temporary file.
gcs-flush-failed | fix-bucket symptom no | events=715 bucket=my_results
  Failed to sync 715 events to gs://my_results/resnet-tpu-framework/events.out.tfevents.1546877726.n-ec458f18-w-0.v2
  Could not flush events file.
""")

# Other wordings of the same messages, and longer ones that hold several: the one that says most comes first.
VARIANTS = [
    ("gcs-denied", "Anonymous caller does not have storage.objects.get access to the Google Cloud Storage object."),
    ("gcs-denied", "Caller does not have storage.objects.get access to object your-bucket/test.txt."),
    (
        "gcs-denied",
        "HTTP response code 403 with body '<Details>x@y.com does not have storage.objects.get access to the",
    ),
    ("gcs-bucket-missing", "BucketNotFoundException: 404 gs://dxxp-default bucket does not exist."),
    ("gcs-bucket-missing", "NotFound: 404 The specified bucket does not exist."),
    ("gcs-object-missing", "NotFoundError: The specified path gs://miban/new/dataset_info.json was not found."),
    ("gcs-rate-limit", "Error 429: The rate of change requests to the object exceeds the rate limit."),
    (
        "gcs-rate-limit",
        "The object b/o exceeded the rate limit for object mutation operations (create, update, and delete).",
    ),
    (
        "gcs-stalled",
        "libcurl code 42 meaning 'Operation was aborted by an application callback', error details: Callback",
    ),
    (
        "gcs-name-lookup",
        "libcurl code 6 meaning 'Couldn't resolve host name', error details: Couldn't resolve host 'metadata'",
    ),
    ("gcs-connection", "libcurl code 7 meaning 'Couldn't connect to server', error details: Failed to connect"),
    (
        "gcs-unavailable",
        "google.api_core.exceptions.ServiceUnavailable: 503 POST https://storage.googleapis.com/upload/b",
    ),
    ("gcs-unavailable", "Error executing an HTTP request: HTTP response code 429 with body ''"),
    ("gcs-gcsfs", "gcsfs.retry.HttpError: The condition was not met, 412"),
    ("gcs-flush-failed", "Could not flush events file."),
]

# Ordinary lines that come near.
HARMLESS = [
    "Error: No such object: gcr.io/project/image",
    "An error occurred (NoSuchBucket) when calling the ListObjects operation: The specified bucket does not exist",
    "INFO:tensorflow:Saving checkpoints for 0 into gs://my_results/resnet/model.ckpt.",
    "10.0.0.7 - - [01/May/2024] GET /storage/v1/b HTTP response code 503",
    "google.api_core.exceptions.NotFound: 404 GET https://storage.googleapis.com/storage/v1/b/b/o/x?alt=json",
    "google.api_core.exceptions.ServiceUnavailable: 503 GET https://secretmanager.googleapis.com/v1/x",
    "curl: (28) Operation timed out",
    "the account has storage.objects.list access to my-bucket",
    "Downloading https://storage.googleapis.com/libtpu-releases/index.html",
]


def test_every_entry_has_one_example() -> None:
    assert [example.id for example in EXAMPLES] == ids_of_entries("gcs-")
