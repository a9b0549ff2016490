"""Runs with names, as tests of the name server use them."""

from __future__ import annotations

from astra_dns.records import Draft, RunNames, Snapshot

LLAMA = RunNames("nlp", "llama", {"llama-0": ("10.0.0.1",), "llama-1": ("10.0.0.2", "fd00::2")}, "llama-0", 29500, 3, 2)
ETL = RunNames("nlp", "etl", {"etl-driver-0": ("10.0.0.3",), "etl-executor-0": ("10.0.0.1",)}, "etl-driver-0", 7077)
OTHERS_LLAMA = RunNames("vision", "llama", {"llama-0": ("10.0.9.9",)}, "llama-0", 29501, 0, 1)


def snapshot(*runs: RunNames) -> Snapshot:
    draft = Draft()
    for run in runs or (LLAMA, ETL, OTHERS_LLAMA):
        draft.put(run)
    return draft.freeze()
