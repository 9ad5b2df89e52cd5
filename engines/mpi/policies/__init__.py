"""Who is next, by the names of `option.scheduling_policy`."""

from __future__ import annotations

from engines.registry import Registry

POLICIES = Registry(
    {
        "fcfs": "engines.mpi.policies.fcfs:FirstComeFirstServed",
        "priority": "engines.mpi.policies.priority:Priority",
        "fair": "engines.mpi.policies.fair:Fair",
    }
)
