"""TensorBoard event files, written synchronously.

`torch.utils.tensorboard.SummaryWriter` hands events to a background thread: an error reaches the caller late or never,
up to two minutes of events are lost by a kill, and the process that starts workers gains a thread. A run writes a few
dozen numbers every few seconds, so here each call writes one event to the file, or keeps it for later if the disk
refuses it. The format is TensorBoard's own, through its protocol buffers and record writer.
"""

from __future__ import annotations

import contextlib
import io
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from asyncrl.storage.files import Growing

FIRST = {"async/": "workers/", "learner/": "workers/learner_"}
"""Other names for what TensorBoard, which sorts by the alphabet, would otherwise show before the scores."""
PLAIN = (bool, int, float, str)


def shown(tag: str) -> str:
    """The tag under which TensorBoard shows what the records call `tag`."""
    for before, after in FIRST.items():
        if tag.startswith(before):
            return after + tag.removeprefix(before)
    return tag


class TensorBoardWriter(Growing):
    """Write one new event file into `folder`, which is made when missing.

    `purge_step` is the step at which a run is resumed: TensorBoard hides the points at and after it in earlier files.
    Not for several writers at once: TensorBoard follows only the last file of a folder.
    """

    def __init__(self, folder: Path, purge_step: int | None = None) -> None:
        # Here and not above: the import takes a fifth of a second, and not every command that reads this module writes.
        from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, tensor_shape_pb2
        from tensorboard.plugins.text import metadata
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event, self._summary = event_pb2, summary_pb2
        self._tensor, self._shape = tensor_pb2, tensor_shape_pb2
        self._text_metadata = metadata.create_summary_metadata(display_name="", description="")
        with contextlib.suppress(OSError):  # what cannot be made now is missed by the file
            folder.mkdir(exist_ok=True)
        # TensorBoard reads the files of a folder in the order of their names, so the time comes first.
        seconds, nanoseconds = divmod(time.time_ns(), 10**9)
        self.path = folder / f"events.out.tfevents.{seconds:010d}.{nanoseconds:09d}.{os.getpid()}"
        super().__init__(self.path)
        self._frame = RecordWriter
        self._write(time.time(), file_version="brain.Event:2")
        if purge_step is not None:
            start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            self._write(time.time(), step=purge_step, session_log=start)

    def scalars(self, values: Mapping[str, float], step: int, walltime: float | None = None) -> None:
        """Write one number for each tag at a step; `walltime` is in seconds since 1970, now when not given."""
        points = [self._summary.Summary.Value(tag=shown(tag), simple_value=float(v)) for tag, v in values.items()]
        self._write(walltime, step=step, summary=self._summary.Summary(value=points))

    def text(self, tag: str, text: str, step: int = 0) -> None:
        """Write a text in Markdown."""
        tensor = self._tensor.TensorProto(
            dtype="DT_STRING",
            string_val=[text.encode()],
            tensor_shape=self._shape.TensorShapeProto(dim=[self._shape.TensorShapeProto.Dim(size=1)]),
        )
        value = self._summary.Summary.Value(
            tag=f"{shown(tag)}/text_summary", metadata=self._text_metadata, tensor=tensor
        )
        self._write(None, step=step, summary=self._summary.Summary(value=[value]))

    def hparams(self, settings: Mapping[str, Any], metrics: Sequence[str]) -> None:
        """A row of the tab HPARAMS: the settings of the run, and its scores by their tags."""
        from tensorboard.plugins.hparams import summary_v2

        plain = {name: value if isinstance(value, PLAIN) else str(value) for name, value in settings.items()}
        columns = [summary_v2.HParam(name) for name in plain]
        scores = [summary_v2.Metric(shown(tag)) for tag in metrics]
        for summary in (summary_v2.hparams_config_pb(columns, scores), summary_v2.hparams_pb(plain)):
            self._write(None, summary=summary)

    def _write(self, walltime: float | None, **content: Any) -> None:
        event = self._event.Event(wall_time=time.time() if walltime is None else walltime, **content)
        record = io.BytesIO()
        self._frame(record).write(event.SerializeToString())
        self.append(record.getvalue())
