"""Observations of several parts: what the encoder puts together, the network takes apart, and learns from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import asyncrl
from asyncrl import a3c, apex
from asyncrl.commands.train import main
from asyncrl.core.spaces import Spaces
from asyncrl.envs.encoders import encoder_of
from asyncrl.envs.spec import EnvSpec
from asyncrl.nets.parts import put_together, stacked_parts, taken_apart
from tests.support import evaluations_of, the_run

HERE = "tests.nets.test_parts"
SCREEN, BOARD = spaces.Box(0, 255, (40, 36, 3), np.uint8), spaces.Box(0.0, 1.0, (5, 5, 2), np.float32)
NUMBERS = spaces.Box(-1.0, 1.0, (2,), np.float32)


class Agree(gymnasium.Env[Any, Any]):
    """A light is on at the left or right of an image, and a number is 1 or -1: press 1 if that is the light's side.

    Neither of the two alone says anything. Pays 1 or -1; ten presses are an episode.
    """

    observation_space = spaces.Dict(camera=BOARD, side=spaces.Box(-1.0, 1.0, (1,), np.float32), lamp=spaces.Discrete(2))
    action_space = spaces.Discrete(2)

    def __init__(self, masks: bool = False) -> None:
        self.at, self.camera, self.side, self.masks = 0, np.zeros((5, 5, 2), np.float32), 1.0, masks

    def _observe(self) -> tuple[dict[str, Any], dict[str, Any]]:
        self.side, light = self.np_random.choice([-1.0, 1.0]), int(self.np_random.integers(2))
        self.camera[:] = 0.0
        self.camera[:, 4 * light] = 1.0
        self.right = int((self.side > 0) == (light == 1))
        seen = {"camera": self.camera.copy(), "side": np.array([self.side], np.float32), "lamp": 0}
        return seen, {"action_mask": [1, 1]} if self.masks else {}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.at = 0
        return self._observe()

    def step(self, action: Any) -> Any:
        reward = 1.0 if action == self.right else -1.0
        self.at += 1
        observation, info = self._observe()
        return observation, reward, self.at == 10, False, info


def test_numbers_come_first_and_then_the_pixels_of_each_image() -> None:
    """Whatever their order in the space, and however deep they are; everything is float32 if something is."""
    space = spaces.Dict(a=SCREEN, b=NUMBERS, c=spaces.Tuple([BOARD, spaces.Discrete(3)]))
    encoding = encoder_of(space, "X")
    space.seed(1)
    seen = space.sample()

    result = encoding.encode(seen)

    assert (encoding.kind, encoding.dtype, encoding.shape) == ("screen", "float32", (5 + 3 * 40 * 36 + 2 * 5 * 5,))
    assert encoding.parts == (
        Spaces((5,), "float32", 0),
        Spaces((3, 40, 36), "uint8", 0, kind="screen"),
        Spaces((2, 5, 5), "float32", 0, kind="board"),
    )
    assert result.dtype == np.float32
    np.testing.assert_array_equal(result[:2], seen["b"])
    np.testing.assert_array_equal(result[2:5], np.eye(3)[seen["c"][1]])
    np.testing.assert_array_equal(result[5:4325].reshape(3, 40, 36), seen["a"].transpose(2, 0, 1))
    np.testing.assert_array_equal(result[4325:].reshape(2, 5, 5), seen["c"][0].transpose(2, 0, 1))


def test_images_alone_stay_bytes_and_one_image_is_that_image() -> None:
    two, one = (encoder_of(spaces.Dict(dict.fromkeys(keys, SCREEN)), "X") for keys in ("ab", "a"))
    assert (two.shape, two.dtype, len(two.parts)) == ((2 * 3 * 40 * 36,), "uint8", 2)
    assert (one.shape, one.dtype, one.parts) == ((3, 40, 36), "uint8", ())
    image = np.full((40, 36, 3), 7, np.uint8)
    assert one.encode({"a": image}).shape == (3, 40, 36)
    assert two.encode({"a": image, "b": image}).dtype == np.uint8


PARTS = (Spaces((2,), "float32", 0), Spaces((1, 3, 3), "uint8", 0, kind="board"))


@pytest.mark.parametrize("stack", [1, 3])
@pytest.mark.parametrize("masked", [False, True])
def test_a_network_gets_back_what_was_put_together(stack: int, masked: bool) -> None:
    """Each part stacked along its first axis, oldest first, and the newest mask."""
    one = 2 + 9 + 4 * masked
    packed = Spaces((stack * one,), "float32", 4, kind="board", parts=PARTS, masked=masked)
    numbers = torch.arange(2.0 * stack * one).view(2, stack, one)

    parts, mask = taken_apart(packed, numbers.flatten(1))

    assert [part.observation_shape for part in stacked_parts(packed)] == [(2 * stack,), (stack, 3, 3)]
    torch.testing.assert_close(parts[0].view(2, stack, 2), numbers[:, :, :2])
    torch.testing.assert_close(parts[1].view(2, stack, 9), numbers[:, :, 2:11])
    assert (mask is not None) == masked
    if mask is not None:
        torch.testing.assert_close(mask, numbers[:, -1, 11:])
    again = put_together(packed, parts, mask).view(2, stack, one)
    torch.testing.assert_close(again[..., :11], numbers[..., :11])
    torch.testing.assert_close(again[:, -1], numbers[:, -1])


def sizes(network: torch.nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(p.shape) for name, p in network.named_parameters() if name.endswith("weight")}


def test_each_part_has_a_body_and_layers_join_them() -> None:
    """The numbers' two layers of 64, the image's 16 convolutions, and the image network's layer of 128 over both."""
    seen = EnvSpec(f"{HERE}:Agree").probe()
    assert sizes(a3c.A3C.make_network(a3c.A3C.Config(), seen)) == {
        "trunk.body.bodies.0.linear.0.weight": (64, 3), "trunk.body.bodies.0.linear.1.weight": (64, 64),
        "trunk.body.bodies.1.convolutions.0.weight": (16, 2, 3, 3),
        "trunk.body.joined.0.weight": (128, 64 + 16 * 3 * 3), "policy.weight": (2, 128), "value.weight": (1, 128),
    }  # fmt: skip
    dueling = sizes(apex.ApeX.make_network(apex.ApeX.Config(), seen))
    assert dueling["head.hidden.weight"] == (256, 64 + 16 * 3 * 3)  # the streams' own layers join them
    assert "trunk.body.joined.0.weight" not in dueling


def test_an_image_beside_numbers_is_scaled_like_an_image_alone() -> None:
    """Pixels of 255 are 1 to the convolutions, in a float32 vector too."""
    parts = (PARTS[0], Spaces((3, 40, 40), "uint8", 0, kind="screen"))
    seen = Spaces((2 + 4800,), "float32", 2, kind="screen", parts=parts)
    network: Any = a3c.A3C.make_network(a3c.A3C.Config(network="paper", normalize_observations=False), seen)
    image = torch.randint(256, (5, 3, 40, 40), dtype=torch.uint8)
    packed = torch.cat([torch.randn(5, 2), image.flatten(1).float()], -1)
    numbers, pixels = network.trunk.body.bodies

    expected = torch.cat([numbers(packed[:, :2]), pixels(image)], -1)
    joined = torch.relu(torch.nn.functional.linear(expected, *network.trunk.body._joined[0]))
    torch.testing.assert_close(network.trunk.body(packed), joined)
    assert pixels.scale == 1 / 255


@pytest.mark.parametrize(
    ("algorithm", "words"),
    [
        ("a3c", ["--lstm-cells", "4", "--env-kwargs", "masks=True", "--action-masks", "--frame-stack", "2"]),
        ("gorila", ["--warmup-steps", "100", "--memory-steps", "5000", "--checkpoint-replay", "--frame-stack", "2"]),
        ("ppo", ["--env-kwargs", "masks=True", "--action-masks", "--normalize-observations"]),
    ],
)
def test_a_run_is_resumed_and_loaded(tmp_path: Path, algorithm: str, words: list[str]) -> None:
    """Through replay and checkpoints, alone and in batches."""
    words += ["--env-id", f"{HERE}:Agree", "--backend", "serial", "--workers", "2", "--quiet"]
    words += ["--evaluation-episodes", "2", "--evaluation-interval-steps", "0"]
    assert main(f"asyncrl.{algorithm}", [*words, "--total-steps", "400", "--runs-dir", str(tmp_path)]) == 0
    run = the_run(tmp_path)
    assert main(f"asyncrl.{algorithm}", ["--resume", str(run), "--total-steps", "800", "--quiet"]) == 0

    policy = asyncrl.load(run, trust=True, greedy=True)

    environment = Agree()
    one = environment.reset(seed=1)[0]
    batch = {key: np.stack([value, value]) for key, value in one.items()}
    masked = "--action-masks" in words
    action, _ = policy.act(one, action_masks=[1, 1] if masked else None)
    both, _ = policy.act(batch, action_masks=np.array([[1, 1], [1, 1]]) if masked else None)
    assert both.tolist() == [action, action]
    if masked:
        assert [policy.act(one, action_masks=np.eye(2)[a])[0] for a in (0, 1)] == [0, 1]
        turned, _ = policy.act(batch, action_masks=np.eye(2))
        assert turned.tolist() == [0, 1]
        for mask, said in ((None, "needs action_masks"), ([0, 0], "allows no action"), ([1], "must be")):
            with pytest.raises(asyncrl.UsageError, match=said):
                policy.act(one, action_masks=mask)
    else:
        with pytest.raises(asyncrl.UsageError, match="without --action-masks takes no action_masks"):
            policy.act(one, action_masks=[1, 1])


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("algorithm", ["a3c", "ppo", "n_step_q"])
def test_image_and_numbers_are_learnt_from_together(tmp_path: Path, algorithm: str) -> None:
    """Neither alone is worth more than 0; the best is 10."""
    words = ["--env-id", f"{HERE}:Agree", "--backend", "serial", "--workers", "2", "--total-steps", "20000", "--quiet"]
    words += ["--evaluation-episodes", "20", "--evaluation-policy", "greedy", "--runs-dir", str(tmp_path)]
    words += ["--exploration-steps", "5000"] if algorithm == "n_step_q" else []
    assert main(f"asyncrl.{algorithm}", words) == 0

    assert evaluations_of(the_run(tmp_path))[-1]["mean"] > 9
