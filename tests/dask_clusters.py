"""Dask clusters of this machine, for tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from waiting import PATIENCE


@contextmanager
def local_cluster(n_workers: int, **options: Any) -> Iterator[Any]:
    """A scheduler and workers of a thread each; none of them loses patience. Skips the test without ``distributed``."""
    distributed = pytest.importorskip("distributed")
    import dask

    patient = {
        "distributed.comm.timeouts.connect": PATIENCE,
        "distributed.comm.timeouts.tcp": PATIENCE,
        "distributed.deploy.lost-worker-timeout": PATIENCE,
        "distributed.scheduler.worker-ttl": None,
        "distributed.scheduler.locks.lease-timeout": PATIENCE,
    }
    with (
        pytest.MonkeyPatch.context() as patch,
        dask.config.set(patient),
        distributed.LocalCluster(n_workers=n_workers, threads_per_worker=1, dashboard_address=":0", **options) as local,
    ):
        patch.setattr("gemmgen.sweep.cluster.CONNECT_SECONDS", PATIENCE)
        yield local
