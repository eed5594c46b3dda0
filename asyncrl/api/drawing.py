"""Pictures of an agent at work, drawn by Pillow: the game on the left, the network's outputs on the right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from asyncrl.api.films import Step
from asyncrl.api.playing import Loaded, outputs_of
from asyncrl.core.action_masks import INVALID
from asyncrl.core.rollout import State

BACK, CARD, TEXT, DIM = (18, 20, 24), (30, 33, 39), (232, 234, 237), (140, 146, 156)
BAR, CHOSEN, LINE, GAIN, LOSS = (74, 96, 128), (245, 166, 35), (90, 200, 250), (80, 200, 120), (235, 87, 87)
WINDOW = 150
"""Steps over which the value is drawn."""
MOST_BARS = 8
"""Rows of actions; further ones are left out, the likeliest stay."""

Outputs = dict[str, NDArray[np.float64]]
"""What the network says to one observation: `probabilities` or `q` `[A]`, or `mean` and `deviation` `[n]`; `value` `[]`
where there is one."""
Colour = tuple[int, int, int]
Place = tuple[int, int, int, int]
"""Left, top, right and bottom in pixels."""


class ObservedAgent:
    """The agent of a run in one environment, which keeps what its network says to each observation."""

    def __init__(self, loaded: Loaded) -> None:
        self._loaded = loaded
        self.initial_state = loaded.agent.initial_state
        self.outputs: Outputs = {}

    def act(self, observations: Tensor, state: State, steps: int) -> tuple[Tensor, State, Any]:
        """As the agent does. Raises UsageError for a network that `outputs_of` cannot use."""
        agent, normalizer = self._loaded.agent, self._loaded.normalizer
        seen = observations if normalizer is None else normalizer.observe(observations)
        found, _ = outputs_of(agent.network, self._loaded.run.spec.spaces, seen, state)
        self.outputs = {name: values[0].double().numpy() for name, values in found.items() if name != "action"}
        if "logits" in found:
            self.outputs["probabilities"] = torch.softmax(found["logits"][0].double(), -1).numpy()
        return agent.act(seen, state, steps)


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


class Bar(NamedTuple):
    """A row of a chart. Places are shares of the chart's width."""

    name: str
    begin: float
    end: float
    colour: Colour
    text: str = ""
    marks: tuple[tuple[float, Colour, int], ...] = ()
    """Place, colour and width in pixels of lines across the bar."""


def draw(
    step: Step, outputs: Outputs, look: Look, values: Sequence[float] = (), rewards: Sequence[float] = ()
) -> Image.Image:
    """One picture of a film.

    `values` are the expected returns up to this step, the newest last, empty if there are none; `rewards` are those
    that each of their steps found.
    """
    height, pad = look.height, look.height // 25
    game, panel = scene(step, height), 2 * (height * 5 // 12)
    width = game.width + game.width % 2  # films have even sizes
    whole = Image.new("RGB", (width + panel, height), BACK)
    whole.paste(game, (0, 0))
    pen = ImageDraw.Draw(whole)
    left, right = width + pad, width + panel - pad
    large, small = font(height // 22), font(height // 28)
    pen.text((left, pad), look.title, TEXT, large)
    top = pad + height // 15
    pen.text((left, top), f"score {step.score:g}", CHOSEN, large)
    pen.text((right, top), f"step {step.number}", DIM, small, anchor="ra")
    top += height // 9
    bottom = height - pad
    if values:
        chart = height * 3 // 10
        draw_values(pen, values, rewards, (left, bottom - chart, right, bottom), small)
        bottom -= chart + pad
    what, bars = action_bars(step, outputs, look)
    pen.text((left, top), what, DIM, small)
    top += height // 18
    each = min((bottom - top) / max(1, len(bars)), height / 14)
    draw_bars(pen, bars, (left, top, right, int(top + each * len(bars))), small, named=True)
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
    pen, pad, small = ImageDraw.Draw(picture), height // 25, font(height // 28)
    pen.text((pad, pad), "what it sees", DIM, small)
    ends = 0.5 + 0.5 * values.astype(np.float64) / max(1e-9, float(np.abs(values).max()))
    bars = [Bar("", min(0.5, end), max(0.5, end), LINE) for end in ends.tolist()]
    draw_bars(pen, bars, (pad, 3 * pad, height - pad, height - pad), small)
    pen.line((height / 2, 3 * pad, height / 2, height - pad), DIM)
    return picture


def action_bars(step: Step, outputs: Outputs, look: Look) -> tuple[str, list[Bar]]:
    """A title, and a bar for each action: its probability, its value, or where its distribution lies in its bounds."""
    if "mean" in outputs:
        shown = range(min(MOST_BARS, len(look.names)))
        return "action: mean, deviation, taken", [component_bar(step, outputs, look, i) for i in shown]
    likely = "probabilities" in outputs
    scores = outputs["probabilities" if likely else "q"]
    lengths = scores if likely else lengths_of(scores)
    shown_bars = [
        Bar(look.names[i], 0.0, float(lengths[i]), CHOSEN if i == step.action else BAR, f"{scores[i]:.2f}")
        for i in sorted(np.argsort(-scores, kind="stable")[:MOST_BARS].tolist())
        if scores[i] > INVALID
    ]
    return "probability" if likely else "value of action", shown_bars


def lengths_of(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """How long the bars of action values are: the best has all of it, the worst a twentieth."""
    worst = scores[scores > INVALID].min()
    spread = scores.max() - worst
    return np.ones(len(scores)) if spread == 0 else 0.05 + 0.95 * (scores - worst) / spread


def component_bar(step: Step, outputs: Outputs, look: Look, i: int) -> Bar:
    """A component of a continuous action: mean and deviation between its bounds, and what was taken."""
    mean, deviation = float(outputs["mean"][i]), float(outputs["deviation"][i])
    low, high = look.low[i], look.high[i]
    if not (np.isfinite(low) and np.isfinite(high) and high - low < 1e30):
        low, high = -3.0, 3.0

    def at(value: float) -> float:
        return min(1.0, max(0.0, (value - low) / max(1e-9, high - low)))

    marks = ((at(mean), TEXT, 1), (at(float(np.asarray(step.action).ravel()[i])), CHOSEN, 3))
    return Bar(look.names[i], at(mean - deviation), at(mean + deviation), BAR, marks=marks)


def draw_bars(pen: ImageDraw.ImageDraw, bars: Sequence[Bar], place: Place, small: Any, named: bool = False) -> None:
    """Bars below each other; `named` ones have their names on the left."""
    left, top, right, bottom = place
    begin = left + (right - left) * 2 // 5 if named else left
    each = (bottom - top) / max(1, len(bars))

    def at(share: float) -> int:
        return begin + int(share * (right - begin))

    for row, bar in enumerate(bars):
        low, high = int(top + (row + 0.05) * each), int(top + (row + 0.75) * each)
        if named:
            pen.text((left, low), shortened(bar.name, small, begin - left - 4), TEXT, small)
            pen.rectangle((begin, low, right, high), CARD)
        pen.rectangle((at(bar.begin), low, at(bar.end), high), bar.colour)
        for mark, colour, width in bar.marks:
            pen.line((at(mark), low, at(mark), high), colour, width)
        colour = BACK if bar.colour == CHOSEN and bar.end > 0.8 else TEXT
        pen.text((right - 3, (low + high) // 2), bar.text, colour, font(small.size * 28 // 34), anchor="rm")


def draw_values(
    pen: ImageDraw.ImageDraw, known: Sequence[float], paid: Sequence[float], place: Place, small: Any
) -> None:
    """The expected return over the newest steps, and a line for each reward unless rewards are frequent."""
    left, top, right, bottom = place
    pen.text((left, top), f"expected return {known[-1]:.2f}", DIM, small)
    top += int(1.8 * small.size)
    pen.rectangle((left, top, right, bottom), CARD)
    room = max(0.1 * (max(known) - min(known)), 1e-3)
    low, high = min(known) - room, max(known) + room
    points = [
        (left + (right - left) * i / (WINDOW - 1), bottom - (bottom - top) * (value - low) / (high - low))
        for i, value in enumerate(known[-WINDOW:])
    ]
    sparse = 4 * sum(map(bool, paid)) <= len(paid)
    for (x, _), reward in zip(points, paid[-WINDOW:], strict=True):
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


@cache
def font(size: int) -> Any:
    """Pillow's own font."""
    return ImageFont.load_default(max(8, size))
