"""Pictures of an agent at work."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from asyncrl.api.drawing import (
    CARD,
    CHOSEN,
    END_PICTURES,
    GAIN,
    LOSS,
    Filming,
    Look,
    action_bars,
    as_colours,
    draw,
    lengths_of,
    names_of_numbers,
)
from asyncrl.api.films import Film, Step
from asyncrl.core.action_masks import INVALID

LOOK = Look("a3c on Catch", ("left", "stay", "right"), height=400)


def drawn(look: Look = LOOK, **changes: Any) -> Image.Image:
    """A policy in a game, after three steps."""
    parts: dict[str, Any] = {
        "picture": np.full((210, 160, 3), 200, np.uint8),
        "observation": np.zeros(4, np.float32),
        "action": 1,
        "reward": 0.0,
        "score": 2.0,
        "number": 3,
    }
    values, rewards = changes.pop("values", [0.0] * 8 + [1.0]), changes.pop("rewards", [0.0] * 9)
    outputs = changes.pop("outputs", {"probabilities": np.array([0.1, 0.7, 0.2]), "value": np.array(1.0)})
    return draw(Step(**parts | changes), outputs, look, values, rewards)


def pixels(picture: Image.Image, colour: tuple[int, int, int]) -> int:
    """How many have this colour."""
    return int((np.array(picture) == colour).all(-1).sum())


def test_the_game_stands_on_the_left_at_the_height_of_the_film() -> None:
    """Both sizes are even, as films want them."""
    picture = drawn()

    assert (picture.height, picture.width % 2) == (400, 0)
    assert picture.getpixel((100, 200)) == (200, 200, 200)
    assert picture.getpixel((picture.width - 1, 200)) != (200, 200, 200)


def test_the_bar_of_what_was_taken_stands_out_and_is_as_long_as_it_is_likely() -> None:
    """Seven times the length of one of 0.1."""
    likely = pixels(drawn(), CHOSEN)
    unlikely = pixels(drawn(action=0), CHOSEN)

    score = pixels(drawn(action=9), CHOSEN)  # written in the same colour
    assert (likely - score) / (unlikely - score) == pytest.approx(7, rel=0.15)


def test_the_best_action_value_has_the_longest_bar() -> None:
    """Whatever their sign; equal values have equal bars."""
    scores = np.array([-3.0, -1.0, -2.0])

    assert lengths_of(scores) == pytest.approx([0.05, 1.0, 0.525])
    assert lengths_of(np.zeros(3)).tolist() == [1.0] * 3


def test_actions_that_a_mask_rules_out_have_no_bar() -> None:
    """Their values, the lowest float32, would make all others alike."""
    outputs = {"q": np.array([-1.0, INVALID, 1.0]), "value": np.array(1.0)}
    step = Step(None, np.zeros(4, np.float32), 2, 0.0, 0.0, 0)

    _, bars = action_bars(step, outputs, LOOK)

    assert [(bar.name, bar.end, bar.text) for bar in bars] == [("left", 0.05, "-1.00"), ("right", 1.0, "1.00")]


def test_what_was_paid_is_marked_unless_nearly_every_step_pays() -> None:
    """A gain and a loss; CartPole's 1 for every step says nothing."""
    mixed = drawn(rewards=[0.0, 0, 0, 1, 0, 0, 0, 0, -1])
    dense = drawn(rewards=[1.0] * 9)

    assert pixels(mixed, GAIN) > 20
    assert pixels(mixed, LOSS) > 20
    assert pixels(dense, GAIN) == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"picture": None},
        {"picture": None, "observation": np.zeros((4, 10, 10), np.uint8)},
        {"outputs": {"q": np.array([1.0, 2.0, 3.0]), "value": np.array(3.0)}},
        {"outputs": {"probabilities": np.array([0.1, 0.7, 0.2])}, "values": [], "rewards": []},
        {"outputs": {"mean": np.zeros(3), "deviation": np.ones(3)}, "action": np.zeros(3, np.float32)},
        {"picture": np.zeros((1000, 300, 3), np.uint8)},
        {"picture": None, "observation": np.linspace(-1, 1, 50, dtype=np.float32)},
    ],
)
def test_there_is_a_picture_of_every_kind_of_agent_and_environment(changes: dict[str, Any]) -> None:
    """Without pictures, with a board, values, no expectation, continuous actions without bounds."""
    look = Look("x", ("a", "b", "c"), low=(-1.0, -np.inf, 0.0), high=(1.0, np.inf, 1.0), height=200)

    assert len(drawn(look, **changes).getcolors(100_000) or ()) > 3


def test_a_very_wide_picture_is_shown_as_a_whole() -> None:
    """Twice as wide as the film is high, with room above and below."""
    picture = drawn(picture=np.full((40, 320, 3), 200, np.uint8))

    assert picture.width == 800 + drawn(picture=np.zeros((400, 400, 3), np.uint8)).width - 400
    assert [picture.getpixel((400, y)) == (200, 200, 200) for y in (100, 155, 200, 245, 300)] == [0, 1, 1, 1, 0]


def test_the_planes_of_a_board_have_colours_of_their_own_and_a_stack_of_screens_is_grey() -> None:
    """What is in no plane is black."""
    board = np.zeros((3, 10, 10), np.float32)
    board[0, 1, 1] = board[2, 2, 2] = 1
    picture = as_colours(board)
    first, third = picture[1, 1].tolist(), picture[2, 2].tolist()

    assert first != third
    assert max(first) == max(third) == 255
    assert picture.sum() == sum(first) + sum(third)
    assert len(np.unique(as_colours(np.random.default_rng(0).integers(0, 255, (4, 84, 84)).astype(np.uint8)), axis=2))


def test_of_a_stack_the_newest_numbers_come_last() -> None:
    """Names are of one observation; where they do not fit, numbers are called by their place."""
    assert names_of_numbers(("x", "v"), 4) == ["x, 1 ago", "v, 1 ago", "x", "v"]
    assert names_of_numbers(("x", "v"), 3) == names_of_numbers((), 3) == ["0", "1", "2"]


def test_a_film_of_short_episodes_has_several_with_their_ends() -> None:
    """Until it has fifty steps; a long one, or what --steps says, ends it sooner, and the end is shown for longer."""

    class Counted:
        """A film that counts its pictures."""

        pictures = 0

        def add(self, picture: NDArray[np.uint8]) -> None:
            self.pictures += 1

    def filmed(length: int, skip: int = 0, most: int = 500, every: int = 1) -> tuple[int, list[float], int]:
        film, agent = Counted(), SimpleNamespace(outputs={"q": np.zeros(3), "value": np.array(1.0)})
        filming = Filming(film, agent, LOOK, skip, most, every)  # type: ignore[arg-type]
        seen = np.zeros(4, np.float32)
        while not filming.is_done:
            for number in range(length):
                filming.look_on(Step(None, seen, 0, 1.0, float(number), number))
                if filming.is_done:
                    break
            else:
                filming.look_on(Step(None, seen, 0, 0.0, float(length), length, is_end=True))
        return filming.steps, filming.scores, film.pictures

    assert filmed(20) == (60, [20.0] * 3, 60 + 3 * END_PICTURES)
    assert filmed(20, every=2) == (60, [20.0] * 3, 30 + 3 * END_PICTURES)
    assert filmed(20, most=25) == (25, [20.0, 5.0], 25 + END_PICTURES)
    assert filmed(20, skip=15, most=10) == (25, [20.0, 5.0], 10 + END_PICTURES)
    assert filmed(60) == (60, [60.0], 60 + END_PICTURES)
    assert filmed(20, skip=20) == (20, [20.0], 0)


def test_of_many_actions_the_likeliest_are_shown() -> None:
    """Eighteen do not fit; the one that is taken is among them here."""
    probabilities = np.full(18, 0.02)
    probabilities[17] = 0.66
    names = tuple(f"action {i}" for i in range(18))
    picture = drawn(Look("x", names), outputs={"probabilities": probabilities}, action=17, values=[])

    rows = (np.array(picture)[:, -60] == CARD).all(-1)
    assert int((np.diff(rows.astype(int)) == 1).sum()) == 8


@pytest.mark.parametrize(("rate", "duration"), [(4.0, 250), (15.0, 200)])
def test_a_gif_has_all_pictures_at_a_speed_that_can_be_followed(tmp_path: Path, rate: float, duration: int) -> None:
    """Five pictures are shown for at least a fifth of a second each; it repeats for ever, and keeps its colours."""
    with Film(tmp_path / "film.gif", rate) as made:
        for i in range(5):
            made.add(np.array(drawn(number=i, score=float(i))))

    with Image.open(tmp_path / "film.gif") as film:
        assert (film.n_frames, film.info["duration"], film.info["loop"]) == (5, duration, 0)
        film.seek(4)
        assert film.convert("RGB").getpixel((100, 200)) == (200, 200, 200)
        assert pixels(film.convert("RGB"), CHOSEN) > 100
