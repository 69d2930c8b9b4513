"""PPO on a pole to be balanced on a cart: data that does not exist before it is trained on.

Each site has poles of another length. One step is a rollout of all environments and the updates from it; its samples are
the environment steps.
"""

import argparse

import torch
from torch import nn

import girassol

args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
args.add_argument("site", type=int, help="number of this site, from 0: the length of its poles")
args.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cpu, cuda or rocm")
args.add_argument("--environments", type=int, default=32)
args.add_argument("--horizon", type=int, default=32, help="environment steps of a rollout")


class Poles:
    """n carts with a pole each, after Barto, Sutton and Anderson (1983). The state is [n, 4]: position, speed, angle, its speed."""

    def __init__(self, n: int, length: float, device: torch.device) -> None:
        self.length = length
        self.state = 0.1 * torch.rand(n, 4, device=device) - 0.05

    def step(self, push: torch.Tensor) -> torch.Tensor:
        """Push left (0) or right (1) for 20 ms; which poles have fallen [n], and were set up again."""
        x, v, angle, w = self.state.unbind(1)
        sin, cos, half = angle.sin(), angle.cos(), self.length / 2
        force = (20.0 * push - 10.0 + 0.1 * half * w.square() * sin) / 1.1
        spin = (9.8 * sin - cos * force) / (half * (4 / 3 - 0.1 * cos.square() / 1.1))
        v, w = v + 0.02 * (force - 0.1 * half * spin * cos / 1.1), w + 0.02 * spin
        self.state = torch.stack([x + 0.02 * v, v, angle + 0.02 * w, w], 1)
        fallen = (self.state[:, 0].abs() > 2.4) | (self.state[:, 2].abs() > 0.21)
        self.state = torch.where(fallen[:, None], 0.1 * torch.rand_like(self.state) - 0.05, self.state)
        return fallen


class ActorCritic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.policy = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2))
        self.value = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 1))
        # To normalise states. Averages of the sites' means and mean squares are right, of variances they would not be.
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("square", torch.ones(4))
        self.register_buffer("seen", torch.tensor(0))

    def forward(self, states: torch.Tensor) -> tuple[torch.distributions.Categorical, torch.Tensor]:
        x = (states - self.mean) / (self.square - self.mean.square()).clamp(min=1e-4).sqrt()
        return torch.distributions.Categorical(logits=self.policy(x)), self.value(x).squeeze(-1)

    def look(self, states: torch.Tensor) -> None:
        rate = max(0.01, 1 / (1 + int(self.seen)))  # the first ones count in full
        self.mean.lerp_(states.mean((0, 1)), rate)
        self.square.lerp_(states.square().mean((0, 1)), rate)
        self.seen += 1


def main() -> None:
    a = args.parse_args()
    device = torch.device(a.device.replace("rocm", "cuda"))  # ROCm builds of PyTorch say cuda
    torch.manual_seed(0)  # the same first weights at every site
    model = ActorCritic().to(device)
    torch.manual_seed(1 + a.site)
    poles = Poles(a.environments, 1.0 + 0.5 * (a.site % 3), device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def rollout(env: Poles, steps: int) -> list[torch.Tensor]:
        """States, actions, their log-probabilities, values and falls, each [steps, n]; the last values [n]."""
        rows = []
        with torch.no_grad():
            for _ in range(steps):
                choice, value = model(env.state)
                action, state = choice.sample(), env.state
                rows.append((state, action, choice.log_prob(action), value, env.step(action).float()))
            return [torch.stack(r) for r in zip(*rows)] + [model(env.state)[1]]

    def learn() -> torch.Tensor:
        states, actions, old, values, fallen, last = rollout(poles, a.horizon)
        advantages, running = torch.zeros_like(values), torch.zeros_like(last)
        for t in reversed(range(a.horizon)):  # generalised advantage estimation
            running = -fallen[t] - values[t] + 0.99 * (1 - fallen[t]) * (last + 0.95 * running)
            advantages[t], last = running, values[t]
        returns, advantages = advantages + values, (advantages - advantages.mean()) / (advantages.std() + 1e-6)
        for _ in range(4):
            choice, value = model(states)
            ratio = (choice.log_prob(actions) - old).exp()
            gain = torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean()
            loss = (value - returns).square().mean() - gain - 0.01 * choice.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
        model.look(states)  # after the updates, which must see the old policy's normalisation
        return loss.detach()

    def evaluate(round: girassol.Round) -> tuple[float, int]:
        """Falls in 500 environment steps: to be small, as a loss."""
        model.load_state_dict(round.state_dict(device))
        fallen = rollout(Poles(a.environments, poles.length, device), 250)[4]
        return 500 * float(fallen.mean()), fallen.numel()

    with girassol.Session(seed=model, evaluate=evaluate, trainer={"precision": "fp32", "batchSize": a.environments * a.horizon}) as session:
        for round in session:
            model.load_state_dict(round.state_dict(device))
            while not round.over:
                round.step(learn(), samples=a.environments * a.horizon)
            round.submit(model.state_dict())


if __name__ == "__main__":
    main()
