"""Event files of TensorBoard: scalars with step and wall time; damaged parts are left out with a note.

Source: TFRecord framing (length, its checksum, data, its checksum) and `Event` of tensorboard 2.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flopwise.errors import MissingFactError, SpecError
from flopwise.records.imports.raw import MOST_BYTES, RawRun, Source

MARK = ".tfevents."
_HEADER, _FOOTER = 12, 4
_MOST_RECORD = 2**28


def recognises(source: Source) -> bool:
    """True if the path is an event file, or a folder with event files."""
    return bool(_files(source.path)) if source.path.is_dir() else MARK in source.path.name


def _files(path: Path) -> list[Path]:
    """The event files of a folder, oldest first: their names contain the time at which they were started."""
    if not path.is_dir():
        return [path]
    return sorted(path.glob(f"*{MARK}*"), key=lambda file: (file.name.partition(MARK)[2], file.name))


def read_runs(source: Source) -> list[RawRun]:
    """One run from all event files of a folder.

    Raises: MissingFactError: tensorboard is not installed. SpecError: no event can be read in any file.
    """
    try:
        from tensorboard.compat.proto.event_pb2 import Event  # noqa: PLC0415 - an extra
        from tensorboard.util.tensor_util import make_ndarray  # noqa: PLC0415 - an extra
    except ImportError:
        raise MissingFactError(
            'event files are read by tensorboard, which is not installed: pip install "flopwise[tensorboard]"'
        ) from None

    folder = source.path if source.path.is_dir() else source.path.parent
    run, events = RawRun(name=folder.resolve().name, task="train"), 0
    for file in _files(source.path):
        data = Source(file).data if file.stat().st_size else b""
        for record in _records(file, data, run.notes):
            event: Any = Event()
            try:
                event.ParseFromString(record)
            except Exception:  # noqa: BLE001 - protobuf's own error, whose module is private
                run.notes.append(f"{file.name}: a record that is not an event was left out")
                continue
            events += 1
            for value in event.summary.value:
                kind = value.WhichOneof("value")
                if kind == "simple_value":
                    run.add(value.tag, value.simple_value, event.wall_time, max(0, event.step))
                elif kind == "tensor" and value.tensor.dtype in (1, 2):  # float, double
                    array = make_ndarray(value.tensor)
                    if array.size == 1:
                        run.add(value.tag, float(array.ravel()[0]), event.wall_time, max(0, event.step))
    if not events:
        raise SpecError(f"{source.path}: no event can be read ({'; '.join(run.notes) or 'nothing in it'})")
    return [run]


def _records(file: Path, data: bytes, notes: list[str]) -> Iterator[bytes]:
    """The records of an event file; a damaged record is skipped, and nothing is read after a damaged length."""
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c  # noqa: PLC0415 - an extra

    assert len(data) <= MOST_BYTES
    place, damaged = 0, 0
    while place < len(data):
        if place + _HEADER > len(data):
            notes.append(f"{file.name}: cut off after {place:,} of {len(data):,} bytes; the events before it were read")
            break
        length, check = struct.unpack_from("<QI", data, place)
        if masked_crc32c(data[place : place + 8]) != check or length > _MOST_RECORD:
            left = len(data) - place
            notes.append(f"{file.name}: damaged at byte {place:,}; the {left:,} bytes from there on were left out")
            break
        end = place + _HEADER + length
        if end + _FOOTER > len(data):
            notes.append(f"{file.name}: cut off after {place:,} of {len(data):,} bytes; the events before it were read")
            break
        record = data[place + _HEADER : end]
        if masked_crc32c(record) == struct.unpack_from("<I", data, end)[0]:
            yield record
        else:
            damaged += 1
        place = end + _FOOTER
    if damaged:
        notes.append(f"{file.name}: {damaged:,} damaged events were left out")
