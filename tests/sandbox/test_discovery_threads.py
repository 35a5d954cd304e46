"""Threads that start at once share one discovery document."""

from __future__ import annotations

import threading

import pytest

from tpuctl.sandbox.discovery import DiscoveryDocument, _read_document, load_document


@pytest.mark.parametrize("api", ["tpu", "compute", "storage"])
def test_threads_that_start_at_once_share_one_document(api: str) -> None:
    version = {"tpu": "v2"}.get(api, "v1")
    _read_document.cache_clear()
    found: list[DiscoveryDocument] = []
    start = threading.Barrier(8)

    def work() -> None:
        start.wait()
        found.append(load_document(api, version))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(found) == 8
    assert len({id(document) for document in found}) == 1
    assert _read_document.cache_info().misses == 1


def test_load_of_an_unknown_document_fails_each_time() -> None:
    for _ in range(2):
        with pytest.raises(LookupError, match="not served"):
            load_document("tpu", "v9")
