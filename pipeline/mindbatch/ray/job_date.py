"""One date for all actors of a Ray job, however late each of them is made."""

from __future__ import annotations

import sys
from typing import Any

from mindbatch.io.amounts import is_day, today

_NAMESPACE = b"mindbatch"


def job_date() -> str:
    """The day on which the first actor of this job asked for it; today outside of a job."""
    ray: Any = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return today()
    from ray.experimental import internal_kv

    name = f"date of job {ray.get_runtime_context().get_job_id()}".encode()
    internal_kv._internal_kv_put(name, today().encode(), overwrite=False, namespace=_NAMESPACE)
    stored_day = internal_kv._internal_kv_get(name, namespace=_NAMESPACE)
    date = today() if stored_day is None else str(stored_day, "ascii", "replace")
    return date if is_day(date) else today()
