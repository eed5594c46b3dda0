"""Pictures of an agent at work, drawn by Pillow: the game on the left, the network's outputs on the right."""

from __future__ import annotations

import colorsys
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from asyncrl.api.films import Film, Step
from asyncrl.api.playing import Loaded, outputs_of
from asyncrl.catalog import short
from asyncrl.core.action_masks import INVALID
from asyncrl.core.moments import mean_and_deviation
from asyncrl.core.rollout import State
from asyncrl.envs.encoders import kind_of
from asyncrl.runtime.normalize import SMALLEST_RETURN_DEVIATION

BACK, CARD, TEXT, DIM = (18, 20, 24), (30, 33, 39), (232, 234, 237), (140, 146, 156)
BAR, CHOSEN, LINE, GAIN, LOSS = (74, 96, 128), (245, 166, 35), (90, 200, 250), (80, 200, 120), (235, 87, 87)
WINDOWS = (10, 20, 40, 80, 150)
"""Steps over which the value is drawn: the first that has room for all so far, or the last."""
MOST_BARS = 8
"""Rows of actions; further ones are left out, the likeliest stay."""
MOST_VALUES = 1000
"""Newest expected returns that determine the scale of their chart."""
LEAST_STEPS = 50
"""While a film has fewer steps, another episode follows."""
END_PICTURES = 4
"""How often the picture after the last step of an episode is shown."""
MOST_NUMBERS = 32
"""An observation of more numbers is drawn as cells of a board instead of a bar for each."""

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


def look_of(loaded: Loaded, height: int) -> Look:
    """How to draw the films of a run."""
    spec, spaces, config = loaded.run.spec.environment, loaded.run.spec.spaces, loaded.run.spec.config
    environment = spec.make(0, evaluation=True)
    environment.close()
    count = len(spaces.action_low) if spaces.is_continuous else spaces.actions
    names = tuple(getattr(environment, "action_names", ()))
    unit, scale = "", 1.0
    if config.reward_clip:
        unit = f", rewards clipped to {config.reward_clip:g}"
    elif config.normalize_returns:
        spread = float(mean_and_deviation(loaded.run.handles.moments.returns.merged())[1][0])
        scale = spread if spread > SMALLEST_RETURN_DEVIATION else 1.0
    return Look(
        f"{short(loaded.run.spec.algorithm)} on {spec.env_id}",
        names if len(names) == count else tuple(f"action {i}" for i in range(count)),
        spaces.action_low, spaces.action_high, height // 2 * 2, tuple(getattr(environment, "observation_names", ())),
        f"discounted by {config.gamma:g}{unit}", scale,
    )  # fmt: skip


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
    seen_names: tuple[str, ...] = ()
    """Of the numbers of an observation that is a vector, as far as they are known; of a stack, those of one."""
    unit: str = ""
    """What expected returns count."""
    value_scale: float = 1.0
    """By which the network's values are multiplied to be in the units of the score."""


class Bar(NamedTuple):
    """A row of a chart. Places are shares of the chart's width."""

    name: str
    begin: float
    end: float
    colour: Colour
    text: str = ""
    marks: tuple[tuple[float, Colour, int], ...] = ()
    """Place, colour and width in pixels of lines across the bar."""


class Filming:
    """Draws the steps of episodes into a film."""

    def __init__(self, film: Film, agent: ObservedAgent, look: Look, skip: int, steps: int, every: int) -> None:
        """The film begins after `skip` steps, has at most so many `steps`, and a picture of `every` so many."""
        self._film, self._agent, self._look = film, agent, look
        self._skip, self._most, self._every = skip, steps, every
        self.steps = 0
        """Steps so far, of all episodes."""
        self.scores = list[float]()
        """Of the episodes; the last one may not be over."""
        self.is_done = False
        self._values, self._rewards, self._reach = list[float](), [0.0], np.zeros(1)

    def look_on(self, step: Step) -> None:
        """Draw a step, if it is to be shown."""
        if step.is_end:
            self._values += self._values[-1:]  # for the last reward to have a place
            if self.steps > self._skip:
                self._draw(step, END_PICTURES)
            self.is_done |= not self._skip < self.steps < self._skip + LEAST_STEPS
            return
        if step.number == 0:
            self._values, self._rewards = [], [0.0]
            self.scores.append(0.0)
        if step.observation.ndim == 1:
            self._reach = np.maximum(self._reach, np.abs(step.observation))
        if "value" in self._agent.outputs:
            self._values.append(float(self._agent.outputs["value"]))
        if self.steps >= self._skip and (self.steps - self._skip) % self._every == 0:
            self._draw(step)
        self.steps += 1
        self.is_done = self.steps >= self._skip + self._most
        self._rewards.append(step.reward)
        self.scores[-1] = step.score + step.reward

    def _draw(self, step: Step, times: int = 1) -> None:
        values, rewards = self._values[-MOST_VALUES:], self._rewards[-MOST_VALUES:]
        picture = np.array(draw(step, self._agent.outputs, self._look, values, rewards, self._reach))
        for _ in range(times):
            self._film.add(picture)


def draw(
    step: Step,
    outputs: Outputs,
    look: Look,
    values: Sequence[float] = (),
    rewards: Sequence[float] = (),
    reach: NDArray[np.float64] | None = None,
) -> Image.Image:
    """One picture of a film.

    `values` are the network's up to this step, the newest last, empty if there are none; `rewards` are those that each
    of their steps found. `reach` is how far each number of an observation has been from 0, the length of its bar.
    """
    height, pad = look.height, look.height // 25
    game, panel = scene(step, look, reach), 2 * (height * 5 // 12)
    width = game.width + game.width % 2  # films have even sizes
    whole = Image.new("RGB", (width + panel, height), BACK)
    whole.paste(game, (0, 0))
    pen = ImageDraw.Draw(whole)
    left, right = width + pad, width + panel - pad
    large, small = font(height // 22), font(height // 28)
    pen.text((left, pad), look.title, TEXT, large)
    top = pad + height // 15
    pen.text((left, top), f"score {step.score:.6g}", CHOSEN, large)
    when = f"end, {step.number} steps" if step.is_end else f"step {step.number}"
    pen.text((right, top), when, TEXT if step.is_end else DIM, small, anchor="ra")
    top += height // 9
    bottom = height - pad
    if values:
        chart = height // 3
        known = [look.value_scale * value for value in values]
        draw_values(pen, known, rewards, (left, bottom - chart, right, bottom), small, look.unit)
        bottom -= chart + pad
    what, bars = action_bars(step, outputs, look)
    pen.text((left, top), what, DIM, small)
    top += height // 18
    each = min((bottom - top) / max(1, len(bars)), height / 14)
    draw_bars(pen, bars, (left, top, right, int(top + each * len(bars))), small, names=0.4)
    return whole


def scene(step: Step, look: Look, reach: NDArray[np.float64] | None = None) -> Image.Image:
    """The game's picture of the film's height; what the agent sees where there is none."""
    if step.picture is not None:
        return scaled(Image.fromarray(step.picture), look.height)
    seen = step.observation
    if seen.ndim == 3:
        return scaled(Image.fromarray(as_colours(seen)), look.height)
    return draw_vector(seen, look, np.abs(seen.astype(np.float64)) if reach is None else reach)


def scaled(picture: Image.Image, height: int) -> Image.Image:
    """The picture at a height, as a whole; one that is more than twice as wide has room above and below."""
    wide = picture.width > 2 * picture.height
    scale = 2 * height / picture.width if wide else height / picture.height
    size = max(2, round(picture.width * scale)), max(1, round(picture.height * scale))
    larger = picture.resize(size, Image.Resampling.NEAREST if scale > 1 else Image.Resampling.LANCZOS)
    if not wide:
        return larger
    whole = Image.new("RGB", (size[0], height), BACK)
    whole.paste(larger, (0, (height - size[1]) // 2))
    return whole


def as_colours(planes: NDArray[Any]) -> NDArray[np.uint8]:
    """Planes `[C, H, W]` as a picture `[H, W, 3]`: those of a board each in a colour, images of a stack in grey."""
    bright = stretched(planes, 1)
    if len(planes) == 1 or kind_of(planes.shape) != "board":
        return np.repeat(stretched(bright.max(0), 255).astype(np.uint8)[:, :, None], 3, 2)
    hues = [colorsys.hsv_to_rgb(0.58 + i / len(planes), 0.6, 1.0) for i in range(len(planes))]
    brightest = bright.argmax(0)
    coloured: NDArray[np.uint8] = (255 * np.array(hues)[brightest] * bright.max(0)[:, :, None]).astype(np.uint8)
    return coloured


def stretched(values: NDArray[Any], most: float) -> NDArray[np.float64]:
    """Values so moved and scaled that the least is 0 and the largest `most`."""
    low, high = float(values.min()), float(values.max())
    return most * (values.astype(np.float64) - low) / max(1e-9, high - low)


def draw_vector(values: NDArray[Any], look: Look, reach: NDArray[np.float64]) -> Image.Image:
    """A vector as named bars to both sides of zero, each with its number; a long one as the cells of a board."""
    height, pad = look.height, look.height // 25
    shape, small = (height, height), font(height // 28)
    picture = Image.new("RGB", shape, CARD)
    pen = ImageDraw.Draw(picture)
    top = 3 * pad
    if len(values) > MOST_NUMBERS:
        columns = math.ceil(math.sqrt(len(values)))
        pen.text((pad, pad), f"what it sees: {len(values)} numbers, row by row", DIM, small)
        cells = np.zeros(-(-len(values) // columns) * columns)
        cells[: len(values)] = values / np.maximum(reach.max(), 1e-9)
        each = (height - pad - top) // columns
        for i, value in enumerate(cells[: len(values)]):
            x, y = pad + i % columns * each, top + i // columns * each
            colour = mixed(BACK, LINE if value > 0 else LOSS, abs(value))
            pen.rectangle((x, y, x + each - 2, y + each - 2), colour)
        return picture
    pen.text((pad, pad), "what it sees", DIM, small)
    ends = (0.5 + 0.5 * values.astype(np.float64) / np.maximum(reach, 1e-9)).tolist()
    bars = [
        Bar(name, min(0.5, end), max(0.5, end), BAR, f"{round(float(value), 2) + 0:.2f}", ((0.5, DIM, 1),))
        for name, end, value in zip(names_of_numbers(look.seen_names, len(values)), ends, values, strict=True)
    ]
    bottom = min(height - pad, top + len(bars) * height // 12)
    draw_bars(pen, bars, (pad, top, height - pad, bottom), small, names=0.55, back=BACK)
    return picture


def names_of_numbers(names: Sequence[str], count: int) -> list[str]:
    """The names of a vector of so many numbers; in one that stacks several observations the newest come last."""
    times, rest = divmod(count, max(1, len(names)))
    if rest or not names:
        return [str(i) for i in range(count)]
    return [f"{name}, {ago} ago" if ago else name for ago in range(times - 1, -1, -1) for name in names]


def mixed(dark: Colour, light: Colour, share: float) -> Colour:
    """A colour between two."""
    red, green, blue = (round(a + (b - a) * min(1.0, share)) for a, b in zip(dark, light, strict=True))
    return red, green, blue


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

    taken = float(np.asarray(step.action).ravel()[i])
    marks = ((at(mean), TEXT, 1), (at(taken), CHOSEN, 3))
    return Bar(look.names[i], at(mean - deviation), at(mean + deviation), BAR, f"{round(taken, 2) + 0:.2f}", marks)


def draw_bars(
    pen: ImageDraw.ImageDraw, bars: Sequence[Bar], place: Place, small: Any, names: float, back: Colour = CARD
) -> None:
    """Bars below each other; `names` is the share of the width that their names have, on the left."""
    left, top, right, bottom = place
    begin, end = left + int((right - left) * names), right - (3 * small.size if any(bar.text for bar in bars) else 0)
    each = (bottom - top) / max(1, len(bars))

    def at(share: float) -> int:
        return begin + int(share * (end - begin))

    for row, bar in enumerate(bars):
        low, high = int(top + (row + 0.05) * each), int(top + (row + 0.75) * each)
        pen.text((left, (low + high) // 2), shortened(bar.name, small, begin - left - 4), TEXT, small, anchor="lm")
        pen.rectangle((begin, low, end, high), back)
        pen.rectangle((at(bar.begin), low, at(bar.end), high), bar.colour)
        for mark, colour, width in bar.marks:
            pen.line((at(mark), low, at(mark), high), colour, width)
        pen.text((right, (low + high) // 2), bar.text, TEXT, font(small.size * 28 // 34), anchor="rm")


def draw_values(
    pen: ImageDraw.ImageDraw, known: Sequence[float], paid: Sequence[float], place: Place, small: Any, unit: str
) -> None:
    """The expected return over the newest steps, and a line for each reward unless rewards are frequent."""
    left, top, right, bottom = place
    tiny = font(small.size * 28 // 34)
    pen.text((left, top), f"expected return {known[-1]:.3g}", DIM, small)
    top += int(1.4 * small.size)
    pen.text((left, top), shortened(unit, tiny, right - left), DIM, tiny)
    top += int(1.5 * small.size)
    pen.rectangle((left, top, right, bottom), CARD)
    window = next((steps for steps in WINDOWS if steps >= len(known)), WINDOWS[-1])
    known, paid = known[-window:], paid[-window:]
    room = max(0.1 * (max(known) - min(known)), 1e-3)
    low, high = min(known) - room, max(known) + room
    points = [
        (left + (right - left) * i / (window - 1), bottom - (bottom - top) * (value - low) / (high - low))
        for i, value in enumerate(known)
    ]
    sparse = 4 * sum(map(bool, paid)) <= len(paid)
    for (x, _), reward in zip(points, paid, strict=True):
        if reward and sparse:
            pen.line((x, top + 1, x, bottom - 1), GAIN if reward > 0 else LOSS, 2)
    if len(points) > 1:
        pen.line(points, LINE, 2)
    x, y = points[-1]
    pen.ellipse((x - 3, y - 3, x + 3, y + 3), LINE)


def shortened(text: str, small: Any, width: float) -> str:
    """As much of a text as fits, with an ellipsis if that is not all."""
    if small.getlength(text) <= width:
        return text
    while text and small.getlength(f"{text}...") > width:
        text = text[:-1]
    return f"{text.rstrip()}..."


@cache
def font(size: int) -> Any:
    """Pillow's own font."""
    return ImageFont.load_default(max(8, size))
