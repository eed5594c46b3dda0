"""Pictures of an agent at work, drawn by Pillow: the game on the left, the network's outputs on the right."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from asyncrl.api.playing import Loaded, outputs_of
from asyncrl.core.rollout import State
from asyncrl.envs.environment import Environment, Wrapper
from asyncrl.envs.pictures import resized

BACK, CARD, TEXT, DIM = (18, 20, 24), (30, 33, 39), (232, 234, 237), (140, 146, 156)
BAR, CHOSEN, LINE, GAIN, LOSS = (74, 96, 128), (245, 166, 35), (90, 200, 250), (80, 200, 120), (235, 87, 87)
WINDOW = 150
"""Steps over which the value is drawn."""
MOST_BARS = 8
"""Rows of actions; further ones are left out, the likeliest stay."""


@dataclass(frozen=True)
class Step:
    """One step of an episode."""

    picture: NDArray[np.uint8] | None
    """The environment's picture, uint8 `[H, W, 3]`; None if it has none."""
    observation: NDArray[Any]
    """What the agent saw, before normalisation."""
    outputs: dict[str, NDArray[np.float64]]
    """`probabilities` or `q` `[A]`, or `mean` and `deviation` `[n]`; `value` `[]` where there is one."""
    action: int | NDArray[np.float32]
    reward: float
    """The reward of this step."""
    score: float
    """The sum of the rewards before this step."""
    number: int
    """Number of this step in the episode, from 0."""


class Thinking:
    """The agent of a run in one environment, which keeps what its network says to each observation."""

    def __init__(self, loaded: Loaded) -> None:
        self._loaded = loaded
        self.initial_state = loaded.agent.initial_state
        self.outputs: dict[str, NDArray[np.float64]] = {}

    def act(self, observations: Tensor, state: State, steps: int) -> tuple[Tensor, State, Any]:
        """As the agent does. Raises UsageError for a network that `outputs_of` cannot use."""
        agent, normalizer = self._loaded.agent, self._loaded.normalizer
        seen = observations if normalizer is None else normalizer.observe(observations)
        found, _ = outputs_of(agent.network, self._loaded.run.spec.spaces, seen, state)
        self.outputs = {name: values[0].double().numpy() for name, values in found.items() if name != "action"}
        if "logits" in found:
            self.outputs["probabilities"] = torch.softmax(found["logits"][0].double(), -1).numpy()
        return agent.act(seen, state, steps)


class Watched(Wrapper):
    """An environment that hands each step of its episodes to `look_on`, with pictures from a step on."""

    def __init__(
        self, environment: Environment, agent: Thinking, look_on: Callable[[Step], None], pictures_from: float
    ) -> None:
        super().__init__(environment)
        self._agent, self._look_on, self._pictures_from = agent, look_on, pictures_from
        self._shape: tuple[int, ...] = ()
        """Of the first picture, to which others are resized."""

    def reset(self) -> NDArray[Any]:
        """As the environment does."""
        self._number, self._score, self._seen = 0, 0.0, np.array(super().reset())
        return self._seen

    def step(self, action: int) -> tuple[NDArray[Any], float, bool, bool, bool]:
        """As the environment does."""
        picture = self.picture() if self._number >= self._pictures_from else None
        if picture is not None:
            self._shape = self._shape or picture.shape
            picture = picture if picture.shape == self._shape else resized(picture, self._shape)
        result = super().step(action)
        self._look_on(Step(picture, self._seen, self._agent.outputs, action, result[1], self._score, self._number))
        self._number, self._score, self._seen = self._number + 1, self._score + result[1], np.array(result[0])
        return result


def action_names(loaded: Loaded) -> tuple[str, ...]:
    """The environment's names of its actions, or "action 0" and so on."""
    spaces = loaded.run.spec.spaces
    count = len(spaces.action_low) if spaces.is_continuous else spaces.actions
    environment = loaded.run.spec.environment.make(0, evaluation=True)
    environment.close()
    names = () if spaces.is_continuous else getattr(environment, "action_names", ())
    return tuple(names) if len(names) == count else tuple(f"action {i}" for i in range(count))


@dataclass(frozen=True)
class Look:
    """What is the same in all pictures of a film."""

    title: str
    names: tuple[str, ...]
    """Of the actions."""
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    """Bounds of continuous actions."""
    height: int = 400
    """Pixels of the whole picture."""

    @property
    def panel_width(self) -> int:
        """Pixels of the right part."""
        return 2 * (self.height * 5 // 12)


def draw(step: Step, look: Look, values: Sequence[float] = (), rewards: Sequence[float] = ()) -> Image.Image:
    """One picture of a film.

    `values` are the expected returns up to this step, the newest last, empty if there are none; `rewards` are those
    that each of their steps found.
    """
    game = scene(step, look.height)
    panel, pad = look.panel_width, look.height // 25
    whole = Image.new("RGB", (even(game.width) + panel, look.height), BACK)
    whole.paste(game, (0, 0))
    pen = ImageDraw.Draw(whole)
    left, right = even(game.width) + pad, even(game.width) + panel - pad
    large, small = font(look.height // 22), font(look.height // 28)
    pen.text((left, pad), look.title, TEXT, large)
    top = pad + look.height // 15
    pen.text((left, top), f"score {step.score:g}", CHOSEN, large)
    pen.text((right, top), f"step {step.number}", DIM, small, anchor="ra")
    top += look.height // 9
    chart = look.height * 3 // 10 if values else 0
    bottom = look.height - pad - (chart + pad if chart else 0)
    draw_actions(pen, step, look, (left, top, right, bottom))
    if chart:
        draw_values(pen, values, rewards, (left, look.height - pad - chart, right, look.height - pad), small)
    return whole


def scene(step: Step, height: int) -> Image.Image:
    """The game's picture of a height; what the agent sees where there is none."""
    if step.picture is not None:
        return scaled(Image.fromarray(step.picture), height)
    seen = step.observation
    if seen.ndim == 3:  # the newest plane that says anything
        return scaled(Image.fromarray(as_grey(seen.max(0))).convert("RGB"), height)
    return draw_vector(seen, height)


def scaled(picture: Image.Image, height: int) -> Image.Image:
    """The picture at a height, squeezed if it is very wide: pixels stay rectangles when they are magnified."""
    width = min(max(2, round(picture.width * height / picture.height)), 4 * height)
    larger = height > picture.height
    return picture.resize((width, height), Image.Resampling.NEAREST if larger else Image.Resampling.LANCZOS)


def as_grey(values: NDArray[Any]) -> NDArray[np.uint8]:
    """Values `[H, W]` from the least, black, to the largest, white."""
    low, high = float(values.min()), float(values.max())
    return (255 * (values.astype(np.float64) - low) / max(1e-9, high - low)).astype(np.uint8)


def draw_vector(values: NDArray[Any], height: int) -> Image.Image:
    """A vector as bars to both sides of zero."""
    picture = Image.new("RGB", (height, height), CARD)
    pen, pad = ImageDraw.Draw(picture), height // 25
    pen.text((pad, pad), "what it sees", DIM, font(height // 28))
    top, largest = 3 * pad, max(1e-9, float(np.abs(values).max()))
    each, middle = (height - top - pad) / len(values), height / 2
    for i, value in enumerate(values):
        end = middle + float(value) / largest * (middle - pad)
        y = top + i * each
        pen.rectangle((min(middle, end), y + 0.15 * each, max(middle, end), y + 0.85 * each), LINE)
    pen.line((middle, top, middle, height - pad), DIM)
    return picture


Place = tuple[int, int, int, int]
"""Left, top, right and bottom in pixels."""


def draw_actions(pen: ImageDraw.ImageDraw, step: Step, look: Look, place: Place) -> None:
    """A bar for each action: its probability, its value, or where its distribution lies between its bounds."""
    left, top, right, bottom = place
    small = font(look.height // 28)
    outputs = step.outputs
    if "mean" in outputs:
        pen.text((left, top), "action: mean, deviation, taken", DIM, small)
        shown = list(range(min(MOST_BARS, len(look.names))))
    else:
        scores = outputs["probabilities"] if "probabilities" in outputs else outputs["q"]
        pen.text((left, top), "probability" if "probabilities" in outputs else "value of action", DIM, small)
        shown = sorted(np.argsort(-scores, kind="stable")[:MOST_BARS].tolist())
    top += look.height // 18
    each = min((bottom - top) / max(1, len(shown)), look.height / 14)
    names_end = left + (right - left) * 2 // 5
    for row, i in enumerate(shown):
        y = int(top + row * each)
        bar = (names_end, y + 1, right, int(y + 0.75 * each))
        pen.text((left, y), shortened(look.names[i], small, names_end - left - 4), TEXT, small)
        if "mean" in outputs:
            draw_component(pen, step, look, i, bar)
        else:
            taken = i == step.action
            share = float(scores[i]) if "probabilities" in outputs else share_of(scores, i)
            pen.rectangle(bar, CARD)
            pen.rectangle((bar[0], bar[1], bar[0] + int(share * (right - bar[0])), bar[3]), CHOSEN if taken else BAR)
            text = f"{share:.2f}" if "probabilities" in outputs else f"{scores[i]:.2f}"
            colour = BACK if taken and share > 0.8 else TEXT
            pen.text((right - 3, (bar[1] + bar[3]) // 2), text, colour, font(look.height // 34), anchor="rm")


def share_of(scores: NDArray[np.float64], i: int) -> float:
    """How long the bar of an action value is: the best has all of it, the worst a twentieth."""
    spread = float(scores.max() - scores.min())
    return 1.0 if spread == 0 else 0.05 + 0.95 * float(scores[i] - scores.min()) / spread


def draw_component(pen: ImageDraw.ImageDraw, step: Step, look: Look, i: int, bar: Place) -> None:
    """A component of a continuous action: mean and deviation between its bounds, and what was taken."""
    mean, deviation = float(step.outputs["mean"][i]), float(step.outputs["deviation"][i])
    low, high = look.low[i], look.high[i]
    if not (np.isfinite(low) and np.isfinite(high) and high - low < 1e30):
        low, high = -3.0, 3.0

    def at(value: float) -> int:
        return int(bar[0] + (bar[2] - bar[0]) * min(1.0, max(0.0, (value - low) / max(1e-9, high - low))))

    pen.rectangle(bar, CARD)
    pen.rectangle((at(mean - deviation), bar[1], at(mean + deviation), bar[3]), BAR)
    pen.line((at(mean), bar[1], at(mean), bar[3]), TEXT, 1)
    taken = at(float(np.asarray(step.action).ravel()[i]))
    pen.line((taken, bar[1], taken, bar[3]), CHOSEN, 3)


def draw_values(
    pen: ImageDraw.ImageDraw, known: Sequence[float], paid: Sequence[float], place: Place, small: Any
) -> None:
    """The expected return over the newest steps, and a line for each reward unless rewards are frequent."""
    left, top, right, bottom = place
    pen.text((left, top), f"expected return {known[-1]:.2f}", DIM, small)
    top += int(1.8 * small.size)
    pen.rectangle((left, top, right, bottom), CARD)
    values, rewards = list(known[-WINDOW:]), list(paid[-WINDOW:])
    low, high = min(known), max(known)
    room = max(0.1 * (high - low), 1e-3)
    low, high = low - room, high + room
    points = [
        (left + (right - left) * i / (WINDOW - 1), bottom - (bottom - top) * (value - low) / (high - low))
        for i, value in enumerate(values)
    ]
    sparse = 4 * sum(map(bool, paid)) <= len(paid)
    for (x, _), reward in zip(points, rewards, strict=True):
        if reward and sparse:
            pen.line((x, top + 1, x, bottom - 1), GAIN if reward > 0 else LOSS, 2)
    if len(points) > 1:
        pen.line(points, LINE, 2)
    x, y = points[-1]
    pen.ellipse((x - 3, y - 3, x + 3, y + 3), LINE)


def shortened(text: str, small: Any, width: float) -> str:
    """As much of a text as fits."""
    while text and small.getlength(text) > width:
        text = text[:-1]
    return text


def even(size: int) -> int:
    """The next even number: films have no others."""
    return size + size % 2


@cache
def font(size: int) -> Any:
    """Pillow's own font."""
    return ImageFont.load_default(max(8, size))
