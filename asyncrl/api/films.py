"""Films: a picture for each step of an environment, as a GIF by Pillow or as a video by ffmpeg."""

from __future__ import annotations

import dataclasses
import math
import os
import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from asyncrl.core.errors import UsageError
from asyncrl.core.extras import imported
from asyncrl.envs.environment import BadEnvironment, Environment, EpisodeLost, Wrapper
from asyncrl.envs.pictures import resized
from asyncrl.envs.spec import TOYS, EnvSpec

SUFFIXES = (".gif", ".mp4", ".mkv", ".mov")
LEAST_HEIGHT = 400
"""Smaller pictures are magnified in a film, by a whole number."""
MOST_WIDTH = 4096
"""Pictures are not magnified beyond this width."""
COLOURS = 96
"""Colours of a GIF."""
LEAST_SECONDS, LEAST_RATE = 10.0, 5.0
"""A film that would be shorter is slowed down to last so long, but not below that many pictures per second."""


def check_file(flag: str, file: str) -> None:
    """Raise UsageError if a film cannot be written into the `file` that a `flag` names."""
    suffix = Path(file).suffix.lower()
    if suffix not in SUFFIXES:
        raise UsageError(f"{flag} {file}: the name of a film must end in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}")
    if not Path(file).absolute().parent.is_dir():
        raise UsageError(f"{flag} {file}: there is no such folder")
    if suffix != ".gif":
        imported("imageio_ffmpeg", f"{flag} needs imageio-ffmpeg", "video")


def with_pictures(spec: EnvSpec) -> EnvSpec:
    """The environment, asked for pictures. Raises UsageError if it has none."""
    # Libraries that look for a window system when they are loaded are to draw into memory, which is all we need.
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pygame
    if sys.platform == "linux" and not os.environ.get("DISPLAY"):
        os.environ.setdefault("MUJOCO_GL", "egl")
    if spec.is_atari or spec.env_id in TOYS:  # they need not be asked
        return spec
    spec = dataclasses.replace(spec, env_kwargs=(*spec.env_kwargs, "render_mode=rgb_array"))
    environment: Any = spec.make(0, evaluation=True)
    try:
        environment.reset()
        environment.picture()
    except BadEnvironment as error:
        raise UsageError(str(error)) from error
    finally:
        environment.close()
    return spec


def frame_rate(spec: EnvSpec) -> float:
    """Pictures per second at which a film has the environment's own speed.

    That is 60 frames of Atari; elsewhere `render_fps` in Gymnasium's metadata, 30 if it is not there.
    """
    if spec.is_atari or spec.env_id in TOYS:
        return 60 / spec.frames_per_step if spec.is_atari else LEAST_RATE
    environment: Any = spec.make(0, evaluation=True)
    environment.close()
    frames: Any = (environment.native.metadata or {}).get("render_fps")
    is_known = isinstance(frames, int | float) and 0 < frames < math.inf
    return (frames if is_known else 30) / spec.frames_per_step


def watchable(rate: float, pictures: int) -> float:
    """The rate at which to show so many pictures, in pictures per second: `rate`, or less if the film is short."""
    return min(rate, max(LEAST_RATE, pictures / LEAST_SECONDS))


class Film:
    """A film, of pictures that are all of the first one's size.

    Use it in a `with` block, whose end finishes the file; without pictures there is none.
    """

    def __init__(self, file: Path, rate: float) -> None:
        """`rate` is the environment's own speed in pictures per second; a short film is slower."""
        self._file, self._rate = file, rate
        self._is_gif = file.suffix.lower() == ".gif"
        self._shape: tuple[int, ...] = ()
        self._packed: list[bytes] = []
        """The pictures of a GIF, and a video's first ones: hundreds of uncompressed ones would not fit into memory."""
        self._frames: Any = None
        self._added = 0

    def add(self, picture: NDArray[np.uint8]) -> None:
        """Append a picture `[height, width, 3]`. Raises UsageError if ffmpeg cannot write it."""
        self._shape = picture.shape
        self._added += 1
        if self._frames is not None:
            self._send(picture)
            return
        self._packed.append(zlib.compress(picture.tobytes(), 1))
        if not self._is_gif and watchable(self._rate, self._added) == self._rate:  # long enough for its own speed
            self._begin_video()

    def _begin_video(self) -> None:
        """Start ffmpeg, at the speed for as many pictures as there are, and give it these."""
        import imageio_ffmpeg

        height, width, _ = self._shape
        rate = watchable(self._rate, self._added)
        self._frames = imageio_ffmpeg.write_frames(
            str(self._file), (width, height), fps=rate, macro_block_size=2, ffmpeg_log_level="error"
        )
        self._frames.send(None)
        for i in range(len(self._packed)):
            self._send(self._unpacked(i))
        self._packed.clear()

    def _send(self, picture: NDArray[np.uint8]) -> None:
        try:
            self._frames.send(np.ascontiguousarray(picture))
        except OSError:  # ffmpeg has ended, and printed why
            raise UsageError(f"ffmpeg cannot write {self._file}") from None

    def __enter__(self) -> Film:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Finish the file. Raises UsageError unless it has all pictures."""
        try:
            if kind is None and self._packed and not self._is_gif:
                self._begin_video()
        finally:
            if self._frames is not None:
                self._frames.close()
        if kind is not None:
            return
        if self._packed:
            try:
                self._save_gif()
            except OSError as error:
                raise UsageError(f"cannot write {self._file}: {error}") from None
        elif self._added:
            self._check_video()

    def _check_video(self) -> None:
        """Raise UsageError unless all pictures can be read: ffmpeg reports a full disk only to the terminal."""
        import imageio_ffmpeg

        try:
            written, _ = imageio_ffmpeg.count_frames_and_secs(str(self._file))
        except (OSError, RuntimeError):
            written = 0
        if written < self._added:
            raise UsageError(f"{self._file}: {written} of {self._added} pictures could be written; is the disk full?")

    def _save_gif(self) -> None:
        """All pictures share one palette, made from a dozen of them: what does not move then takes no space."""
        some = [self._unpacked(i) for i in range(0, self._added, max(1, self._added // 12))]
        palette = Image.fromarray(np.concatenate(some)).quantize(COLOURS, Image.Quantize.MEDIANCUT)
        pictures = (
            Image.fromarray(self._unpacked(i)).quantize(palette=palette, dither=Image.Dither.NONE)
            for i in range(self._added)
        )
        rate = watchable(self._rate, self._added)
        duration = max(20, 10 * round(100 / rate))  # in ms; GIF has hundredths, and browsers show 10 as 100
        next(pictures).save(
            self._file, save_all=True, append_images=pictures, duration=duration, loop=0, optimize=False
        )

    def _unpacked(self, i: int) -> NDArray[np.uint8]:
        return np.frombuffer(zlib.decompress(self._packed[i]), np.uint8).reshape(self._shape)


@dataclass(frozen=True)
class Step:
    """One step of an episode, or what there is to see after the last one."""

    picture: NDArray[np.uint8] | None
    """The environment's picture before it, uint8 `[H, W, 3]`; None if it has none."""
    observation: NDArray[Any]
    """What the agent saw, before normalisation."""
    action: int | NDArray[np.float32]
    reward: float
    """The reward of this step."""
    score: float
    """The sum of the rewards before this step."""
    number: int
    """Number of this step in the episode, from 0."""
    is_end: bool = False
    """The episode is over: the action is that of its last step, and there is no reward."""


class Filmed(Wrapper):
    """An environment that hands each step of its first episodes to `look_on`, with pictures from a step on."""

    def __init__(
        self, environment: Environment, look_on: Callable[[Step], None], pictures_from: float = 0, episodes: int = 1
    ) -> None:
        """`pictures_from` counts the steps of all `episodes`."""
        super().__init__(environment)
        self._look_on, self._pictures_from, self._most = look_on, pictures_from, episodes
        self._shape: tuple[int, ...] = ()
        """Of the first picture, to which others are resized."""
        self._number, self._score, self._episodes, self._steps = 0, 0.0, 0, 0
        self._seen: NDArray[Any] = np.empty(0)

    def reset(self) -> NDArray[Any]:
        """As the environment does."""
        self._episodes += 1
        self._number, self._score = 0, 0.0
        self._seen = np.array(super().reset())
        return self._seen

    def step(self, action: int) -> tuple[NDArray[Any], float, bool, bool, bool]:
        """As the environment does."""
        if self._episodes > self._most:
            return super().step(action)
        picture = self._picture_now()
        try:
            result = super().step(action)
        except EpisodeLost:  # it is played again
            self._episodes -= 1
            raise
        self._look_on(Step(picture, self._seen, action, result[1], self._score, self._number))
        self._number, self._score, self._seen = self._number + 1, self._score + result[1], np.array(result[0])
        self._steps += 1
        if result[2] or result[3]:
            try:
                picture = self._picture_now()
            except UsageError:  # some cannot be drawn when their episode is over
                return result
            self._look_on(Step(picture, self._seen, action, 0.0, self._score, self._number, is_end=True))
        return result

    def _picture_now(self) -> NDArray[np.uint8] | None:
        """The environment's picture, of the size of the first one."""
        if self._steps < self._pictures_from:
            return None
        picture: NDArray[np.uint8] = self.picture()
        self._shape = self._shape or picture.shape
        return picture if picture.shape == self._shape else resized(picture, self._shape)


def magnified(step: Step) -> NDArray[np.uint8]:
    """The picture of a step, magnified to LEAST_HEIGHT rows or more unless it is too wide for that."""
    assert step.picture is not None
    times = max(1, min(-(-LEAST_HEIGHT // len(step.picture)), MOST_WIDTH // step.picture.shape[1]))
    return step.picture.repeat(times, 0).repeat(times, 1)
