# SPDX-License-Identifier: Apache-2.0
"""What is known of model revisions."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Dict, Optional, Tuple


@dataclass(frozen=True)
class ModelFile:
    """A file of a revision."""

    name: str
    """Relative path with slashes, as in the source."""
    nbytes: int
    sha256: str
    key: Optional[str]
    """Of the object in the store; None for an empty file."""


@dataclass(frozen=True)
class Manifest:
    """A READY revision. It never changes."""

    model_id: str
    revision: str
    source: str
    nbytes: int
    files: Tuple[ModelFile, ...]
    """By name."""
    skipped: Tuple[Tuple[str, str], ...] = ()
    """Files of the source that the import left out, and why."""


@dataclass(frozen=True)
class FileReport:
    """What a check found of one file. problem is empty when nothing is wrong."""

    name: str
    nbytes: int
    problem: str


@dataclass(frozen=True)
class Report:
    """What a check found of a revision."""

    model_id: str
    revision: str
    state: str
    ok: bool
    nbytes: int
    files: Tuple[FileReport, ...]


@dataclass(frozen=True)
class ImportResult:
    """What an import did."""

    manifest: Manifest
    skipped: Tuple[Tuple[str, str], ...]
    """Files of the source that were left out, and why."""
    bytes_read: int
    files_resumed: int
    """Stored by an earlier, interrupted import."""
    files_linked: int
    """Whose bytes the store had already."""
    existed: bool
    """The revision was READY, with these bytes."""


@dataclass(frozen=True)
class Holder:
    """Somebody who has a revision loaded."""

    pid: int
    command: str


@dataclass(frozen=True)
class Summary:
    """A revision in a list."""

    model_id: str
    revision: str
    state: str
    """READY, IMPORTING, ...; empty when problem says what is wrong with what is stored about it."""
    source: str
    files: int
    nbytes: int
    stored: int
    """Of an unfinished import, bytes that are stored completely."""
    started: Optional[str]
    """Of an unfinished import, RFC 3339."""
    running: bool
    """The import runs in this process."""
    in_use: Tuple[Holder, ...]
    problem: str


@dataclass(frozen=True)
class RevisionUsage:
    """What a READY revision takes. shared is the part of nbytes that others have too: deleting it alone does not free
    that."""

    model_id: str
    revision: str
    nbytes: int
    shared: int


@dataclass(frozen=True)
class WeightUsage:
    revisions: Tuple[RevisionUsage, ...]
    nbytes: int
    """That all of them take together."""


@dataclass(frozen=True)
class Progress:
    """How far an import is."""

    phase: str
    """listing, checking, importing, comparing or done; empty before the first."""
    files: int
    files_done: int
    files_reused: int
    """Of files_done, stored before or linked to equal bytes."""
    nbytes: int
    nbytes_done: int
    bytes_read: int
    """From the source."""
    elapsed_ms: int


def manifest(text: bytes) -> Manifest:
    return _manifest(json.loads(text))


def _manifest(found: Dict[str, Any]) -> Manifest:
    files = tuple(ModelFile(f["name"], f["size"], f["sha256"], f.get("key")) for f in found["files"] or ())
    return Manifest(found["model_id"], found["revision"], found["source"], found["total_size"], files, _skipped(found))


def _skipped(found: Dict[str, Any]) -> Tuple[Tuple[str, str], ...]:
    return tuple((s["name"], s["reason"]) for s in found.get("skipped") or ())


def report(text: bytes) -> Report:
    found = json.loads(text)
    files = tuple(FileReport(f["name"], f["size"], f.get("problem", "")) for f in found["files"] or ())
    ref = found["ref"]
    return Report(ref["model_id"], ref["revision"], found["state"], found["ok"], found["total_size"], files)


def import_result(text: bytes) -> ImportResult:
    found = json.loads(text)
    return ImportResult(
        manifest=_manifest(found["manifest"]),
        skipped=_skipped(found),
        bytes_read=found["bytes_read"],
        files_resumed=found["files_resumed"],
        files_linked=found["files_linked"],
        existed=found["existed"],
    )


def summaries(text: bytes) -> Tuple[Summary, ...]:
    return tuple(_summary(s) for s in json.loads(text) or ())


def _summary(found: Dict[str, Any]) -> Summary:
    return Summary(
        model_id=found["ref"]["model_id"],
        revision=found["ref"]["revision"],
        state=found["state"],
        source=found["source"],
        files=found["files"],
        nbytes=found["total_size"],
        stored=found["stored"],
        started=found.get("started"),
        running=found.get("running", False),
        in_use=tuple(Holder(h["pid"], h.get("command", "")) for h in found.get("in_use") or ()),
        problem=found.get("problem", ""),
    )


def usage(text: bytes) -> WeightUsage:
    found = json.loads(text)
    revisions = tuple(
        RevisionUsage(r["ref"]["model_id"], r["ref"]["revision"], r["bytes"], r["shared"])
        for r in found["revisions"] or ()
    )
    return WeightUsage(revisions, found["total_bytes"])
