"""One update of Stable-Baselines3's SAC, written down for tests/algorithms/test_control.py.

Weights, a minibatch, noise, and what the library makes of them: the gradients of critics, policy and temperature, and
all parameters after the update. Its policy is updated after its critics, with the critics' new parameters; ours at the
same time. So the policy's gradient is from a second update, in which the critics stand still. It needs its own Python
environment:

    pip install torch==2.13.0 && pip install stable-baselines3
    python benchmarks/sb3_sac_update.py > tests/algorithms/sb3_sac.json
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import torch
from stable_baselines3 import SAC
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.type_aliases import ReplayBufferSamples

OBSERVATION, ACTION, BATCH = 3, 2, 16


class Spaces(gymnasium.Env[Any, Any]):
    """Nothing but the spaces."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (OBSERVATION,), np.float32)
    action_space = gymnasium.spaces.Box(-2.0, 2.0, (ACTION,), np.float32)


def updated(frozen_critics: bool) -> dict[str, Any]:
    """The parameters before, what the update was made of, its gradients, and the parameters after it."""
    torch.manual_seed(1)
    model = SAC(
        "MlpPolicy", Spaces(), learning_rate=1e-3, buffer_size=10, policy_kwargs={"net_arch": [8, 8]},
        ent_coef="auto_0.2",
    )  # fmt: skip
    model.set_logger(Logger(None, []))
    with torch.no_grad():
        for parameter in model.critic_target.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    batch = ReplayBufferSamples(
        torch.randn(BATCH, OBSERVATION), torch.rand(BATCH, ACTION) * 2 - 1, torch.randn(BATCH, OBSERVATION),
        (torch.rand(BATCH, 1) < 0.2).float(), torch.randn(BATCH, 1),
    )  # fmt: skip
    noise = torch.randn(2, BATCH, ACTION)
    drawn = iter(noise)
    torch.distributions.Normal.rsample = lambda self, shape=(): self.loc + self.scale * next(drawn)  # type: ignore
    model.replay_buffer.sample = lambda *given, **named: batch  # type: ignore
    told = {"batch": dict(zip(batch._fields, batch, strict=False)), "noise": noise}
    told |= {"before": parameters_of(model), "gradients": {}}

    def watch(name: str, optimizer: Any, stands_still: bool) -> None:
        step: Callable[..., Any] = optimizer.step

        def noted(*given: Any) -> None:
            told["gradients"][name] = [p.grad.clone() for group in optimizer.param_groups for p in group["params"]]
            if not stands_still:
                step()

        optimizer.step = noted

    watch("critic", model.critic.optimizer, frozen_critics)
    watch("actor", model.actor.optimizer, False)
    watch("temperature", model.ent_coef_optimizer, False)
    model.train(1, BATCH)
    return told | {"after": parameters_of(model)}


def parameters_of(model: Any) -> dict[str, Any]:
    """All parameters, by the part that they belong to."""
    parts = {"actor": model.actor, "critic": model.critic, "target": model.critic_target}
    named = {part: {name: p.detach().clone() for name, p in net.named_parameters()} for part, net in parts.items()}
    return named | {"temperature": model.log_ent_coef.detach().clone()}


def plain(value: Any) -> Any:
    """Tensors as lists, of numbers with the nine digits of a float32."""
    if isinstance(value, torch.Tensor):
        return plain(value.tolist())
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items() if one is not None}
    return [plain(one) for one in value] if isinstance(value, list) else float(f"{value:.9g}")


def main() -> None:
    """Print it."""
    told, still = updated(frozen_critics=False), updated(frozen_critics=True)
    told["gradients"]["actor"] = still["gradients"]["actor"]
    told["after"]["actor"] = still["after"]["actor"]
    print(json.dumps(plain(told)))


if __name__ == "__main__":
    main()
