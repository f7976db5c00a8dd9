# SPDX-License-Identifier: Apache-2.0
"""A Ray cluster of this machine alone, on the loopback interface, for the time of one case."""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

_LOOPBACK = "127.0.0.1"

# Read when Ray and vLLM are imported, by the processes of the cluster too.
ENVIRONMENT = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # what has Ray use the loopback interface by itself
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",  # every worker's line is in the log
    "VLLM_HOST_IP": _LOOPBACK,
}


@contextlib.contextmanager
def running(devices: int) -> Iterator[None]:
    """A cluster with so many NPUs, to which this process is connected."""
    import ray

    os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)  # else Ray writes one to the home directory
    # Not the test's own folder: sockets have short paths.
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp", ignore_cleanup_errors=True) as folder:
        ray.init(
            resources={"NPU": devices},
            num_cpus=2,
            include_dashboard=False,
            object_store_memory=80 << 20,  # 75 MiB is the least
            _temp_dir=folder,
            runtime_env={"worker_process_setup_hook": _finds_tests()},
        )
        try:
            yield
        finally:
            ray.shutdown()


def _finds_tests() -> Callable[[], None]:
    """What each worker runs first: the probe is a module of this checkout, which comes last on the path there
    as it does here. A function within a function is sent by value."""
    checkout = str(Path(__file__).resolve().parents[2])

    def append() -> None:
        sys.path.append(checkout)

    return append
