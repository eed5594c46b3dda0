"""TensorBoard reads what was written, also after a while in which nothing could be."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from asyncrl.storage.tensorboard import TensorBoardWriter


def read(folder: Path) -> Any:
    accumulator = EventAccumulator(str(folder))
    accumulator.Reload()
    return accumulator


def points(folder: Path, tag: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in read(folder).Scalars(tag)]


def test_scores_come_first_in_the_alphabet(tmp_path: Path) -> None:
    """Which is how TensorBoard sorts its groups."""
    writer = TensorBoardWriter(tmp_path)
    tags = ["async/staleness_mean", "eval/mean_reward", "learner/rollout_age_mean", "rollout/ep_rew_mean", "time/fps"]
    writer.scalars(dict.fromkeys([*tags, "train/policy_loss"], 1.0), step=1)
    writer.close()

    groups = list(dict.fromkeys(tag.partition("/")[0] for tag in sorted(read(tmp_path).Tags()["scalars"])))
    assert groups == ["eval", "rollout", "time", "train", "workers"]
    assert points(tmp_path, "workers/learner_rollout_age_mean") == [(1, 1.0)]


def test_settings_and_scores_are_a_row_of_the_tab_hparams(tmp_path: Path) -> None:
    """Numbers as numbers; lists, and what is not set, as text."""
    from tensorboard.plugins.hparams import metadata

    writer = TensorBoardWriter(tmp_path)
    settings = {
        "algorithm": "asyncrl.a3c",
        "learning_rate": 0.5,
        "workers": 2,
        "life_loss": True,
        "hidden_sizes": (8, 4),
    }
    writer.hparams(settings | {"stop_at_score": None}, ["eval/mean_reward"])
    writer.close()

    told = read(tmp_path).SummaryMetadata
    experiment = metadata.parse_experiment_plugin_data(told(metadata.EXPERIMENT_TAG).plugin_data.content)
    session = metadata.parse_session_start_info_plugin_data(told(metadata.SESSION_START_INFO_TAG).plugin_data.content)
    assert [metric.name.tag for metric in experiment.metric_infos] == ["eval/mean_reward"]
    values = {name: value.WhichOneof("kind") for name, value in session.hparams.items()}
    assert values == {
        "algorithm": "string_value", "learning_rate": "number_value", "workers": "number_value",
        "life_loss": "bool_value", "hidden_sizes": "string_value", "stop_at_score": "string_value",
    }  # fmt: skip


def test_what_utf_8_has_not_is_escaped(tmp_path: Path) -> None:
    """Such as a path in another encoding."""
    path = os.fsdecode(b"/caf\xe9")
    writer = TensorBoardWriter(tmp_path)
    writer.hparams({"runs_dir": path}, ["eval/mean_reward"])
    writer.text("command", path)
    writer.close()

    assert writer.missing == 0
    assert read(tmp_path).Tensors("command/text_summary")[0].tensor_proto.string_val[0] == b"/caf\\udce9"


def test_scalars_are_read_back_by_tensorboard(tmp_path: Path) -> None:
    writer = TensorBoardWriter(tmp_path / "tb", purge_step=None)
    writer.scalars({"rollout/ep_rew_mean": -20.5, "time/fps": 800}, step=1000)
    writer.scalars({"rollout/ep_rew_mean": -19.5}, step=2_000_000_000_000)
    writer.close()
    writer.close()
    assert points(tmp_path / "tb", "rollout/ep_rew_mean") == [(1000, -20.5), (2_000_000_000_000, -19.5)]
    assert points(tmp_path / "tb", "time/fps") == [(1000, 800.0)]


def test_a_point_can_be_read_before_the_file_is_closed(tmp_path: Path) -> None:
    writer = TensorBoardWriter(tmp_path)
    writer.scalars({"a": 1.0}, step=1)
    assert points(tmp_path, "a") == [(1, 1.0)]
    writer.close()


def test_text_is_shown_by_the_text_plugin(tmp_path: Path) -> None:
    writer = TensorBoardWriter(tmp_path)
    writer.text("config", "| seed | 1 |", 5)
    writer.close()
    accumulator = read(tmp_path)
    (event,) = accumulator.Tensors("config/text_summary")
    assert (event.step, event.tensor_proto.string_val[0]) == (5, b"| seed | 1 |")
    assert accumulator.SummaryMetadata("config/text_summary").plugin_data.plugin_name == "text"


def test_resuming_hides_the_points_that_will_be_made_again(tmp_path: Path) -> None:
    first = TensorBoardWriter(tmp_path, purge_step=None)
    for step in (100, 200, 300):
        first.scalars({"a": 1.0}, step)
    first.close()
    second = TensorBoardWriter(tmp_path, purge_step=200)
    second.scalars({"a": 2.0}, 200)
    second.close()
    assert points(tmp_path, "a") == [(100, 1.0), (200, 2.0)]


def test_no_thread_is_started(tmp_path: Path) -> None:
    before = threading.active_count()
    writer = TensorBoardWriter(tmp_path)
    writer.scalars({"a": 1.0}, 1)
    assert threading.active_count() == before
    writer.close()
