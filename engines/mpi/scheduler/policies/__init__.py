"""Scheduling policies, by the names of `option.scheduling_policy`."""

from __future__ import annotations

from engines.registry import Registry

POLICIES = Registry(
    {
        "fcfs": "engines.mpi.scheduler.policies.fcfs:FirstComeFirstServed",
        "priority": "engines.mpi.scheduler.policies.priority:Priority",
        "fair": "engines.mpi.scheduler.policies.fair:Fair",
    }
)
