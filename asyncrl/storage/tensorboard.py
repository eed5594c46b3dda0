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

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams.summary_v2 import HParam, Metric, hparams_config_pb, hparams_pb
from tensorboard.plugins.text.summary_v2 import text_pb
from tensorboard.summary.writer.record_writer import RecordWriter

from asyncrl.storage.files import AppendedFile

FIRST = {"async/": "workers/", "learner/": "workers/learner_"}
"""Other names for what TensorBoard, which sorts by the alphabet, would otherwise show before the scores."""
PLAIN = (bool, int, float)


def encodable(text: str) -> str:
    """The text with escapes for what UTF-8 has not, such as the bytes of a path in another encoding."""
    return text.encode("utf-8", "backslashreplace").decode()


def shown(tag: str) -> str:
    """The tag under which TensorBoard shows what the records call `tag`."""
    for before, after in FIRST.items():
        tag = after + tag.removeprefix(before) if tag.startswith(before) else tag
    return encodable(tag)


class TensorBoardWriter(AppendedFile):
    """Write one new event file into `folder`, which is made when missing.

    `purge_step` is the step at which a run is resumed: TensorBoard hides the points at and after it in earlier files.
    Not for several writers at once: TensorBoard follows only the last file of a folder.
    """

    def __init__(self, folder: Path, purge_step: int | None = None) -> None:
        with contextlib.suppress(OSError):  # what cannot be made now is missed by the file
            folder.mkdir(exist_ok=True)
        # TensorBoard reads the files of a folder in the order of their names, so the time comes first.
        seconds, nanoseconds = divmod(time.time_ns(), 10**9)
        self.path = folder / f"events.out.tfevents.{seconds:010d}.{nanoseconds:09d}.{os.getpid()}"
        super().__init__(self.path)
        self._event(file_version="brain.Event:2")
        if purge_step is not None:
            self._event(step=purge_step, session_log=SessionLog(status=SessionLog.START))

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Write one number for each tag at a step."""
        points = [Summary.Value(tag=shown(tag), simple_value=float(value)) for tag, value in values.items()]
        self._event(step=step, summary=Summary(value=points))

    def text(self, tag: str, text: str, step: int = 0) -> None:
        """Write a text in Markdown."""
        self._event(step=step, summary=text_pb(f"{shown(tag)}/text_summary", encodable(text)))

    def hparams(self, settings: Mapping[str, Any], metrics: Sequence[str]) -> None:
        """A row of the tab HPARAMS: the settings of the run, and its scores by their tags."""
        plain = {name: value if isinstance(value, PLAIN) else encodable(str(value)) for name, value in settings.items()}
        scores = [Metric(shown(tag)) for tag in metrics]
        for summary in (hparams_config_pb([HParam(name) for name in plain], scores), hparams_pb(plain)):
            self._event(summary=summary)

    def _event(self, **content: Any) -> None:
        record = io.BytesIO()
        RecordWriter(record).write(Event(wall_time=time.time(), **content).SerializeToString())
        self.put(record.getvalue())
