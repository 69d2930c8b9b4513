"""A small GPT that learns Python, byte by byte, from the sources of Python's own library.

With its default size it has the weights, names and shapes of `agent trainer`, the trainer in Go: both train in one federation.
"""

import argparse
import math
import os
import pathlib

import torch
import torch.nn.functional as F
from torch import nn

import girassol

args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
args.add_argument("site", type=int, help="number of this site, from 0: its part of the files")
args.add_argument("--sites", type=int, default=2)
args.add_argument("--text", type=pathlib.Path, default=pathlib.Path(os.__file__).parent, help="folder of *.py files")
args.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cpu, cuda or rocm")
args.add_argument("--compile", action="store_true", help="use torch.compile; give the rounds a minute or more")
for name, size in {"dim": 64, "layers": 2, "heads": 4, "context": 64, "batch": 4}.items():
    args.add_argument(f"--{name}", type=int, default=size)


class Block(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = nn.ModuleDict({"qkv": nn.Linear(dim, 3 * dim, bias=False), "proj": nn.Linear(dim, dim, bias=False)})
        self.mlp = nn.ModuleDict({"up": nn.Linear(dim, 4 * dim, bias=False), "down": nn.Linear(4 * dim, dim, bias=False)})

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        batch, time, dim = x.shape
        q, k, v = self.attn["qkv"](self.ln1(x)).view(batch, time, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        future = torch.full((time, time), -math.inf, device=x.device).triu(1)
        mixed = torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]) + future, -1).to(v.dtype) @ v
        x = x + self.attn["proj"](mixed.transpose(1, 2).reshape(batch, time, dim))
        return x + self.mlp["down"](F.relu(self.mlp["up"](self.ln2(x))).square())


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary position embedding."""
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


class GPT(nn.Module):
    def __init__(self, dim: int, layers: int, heads: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, dim)  # the output layer too: tied, and so once in the state dict
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(dim)
        # Not persistent: what can be computed need not travel.
        self.register_buffer("rates", 10000 ** -(torch.arange(dim // heads // 2) / (dim // heads // 2)), persistent=False)
        for name, weight in self.named_parameters():
            if weight.dim() > 1:
                nn.init.normal_(weight, std=0.5 / math.sqrt(dim * (2 * layers if "proj" in name or "down" in name else 1)))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        angles = torch.arange(tokens.shape[1], device=tokens.device)[:, None] * self.rates
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, angles.cos(), angles.sin())
        return F.linear(self.ln_f(x), self.embed.weight)


def read(files: list[pathlib.Path]) -> torch.Tensor:
    if not files:
        raise SystemExit("no text for this site: --text names a folder of *.py files, ten or more")
    return torch.frombuffer(bytearray(b"".join(f.read_bytes() for f in files)), dtype=torch.uint8)


def main() -> None:
    a = args.parse_args()
    device = torch.device(a.device.replace("rocm", "cuda"))  # ROCm builds of PyTorch say cuda
    files = sorted(a.text.glob("*.py"))
    held_out = read(files[::10])
    text = read([f for i, f in enumerate(files) if i % 10 and i % a.sites == a.site])
    torch.manual_seed(0)  # the same first weights at every site, other batches
    model = GPT(a.dim, a.layers, a.heads).to(device)
    torch.manual_seed(1 + a.site)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.99), weight_decay=0.1)
    predict = torch.compile(model) if a.compile else model  # trains the same tensors; its own state dict has other names

    def loss_of(text: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
        window = text[starts[:, None] + torch.arange(a.context + 1)].to(device).long()
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):  # weights stay fp32
            logits = predict(window[:, :-1])
        return F.cross_entropy(logits.float().flatten(0, 1), window[:, 1:].flatten())

    def evaluate(round: girassol.Round) -> tuple[float, int]:
        model.load_state_dict(round.state_dict(device))
        with torch.no_grad():
            starts = torch.arange(128) * (len(held_out) - a.context - 1) // 127
            return float(loss_of(held_out, starts)), len(starts) * a.context

    facts = {"precision": "bf16" if device.type == "cuda" else "fp32", "batchSize": a.batch * a.context}
    with girassol.Session(seed=model, evaluate=evaluate, trainer=facts) as session:
        for round in session:
            model.load_state_dict(round.state_dict(device))
            while not round.over:
                loss = loss_of(text, torch.randint(len(text) - a.context, (a.batch,)))
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                # Set in the federation's spec, `trainer: {lr: "0.003", total_samples: "1e9"}`; a cosine over all sites' samples.
                done = min((round.committed_samples + round.samples) / float(round.config.get("total_samples", "inf")), 1)
                optimizer.param_groups[0]["lr"] = float(round.config.get("lr", 3e-3)) * (0.55 + 0.45 * math.cos(math.pi * done))
                optimizer.step()
                round.step(loss, samples=a.batch * a.context)  # samples are bytes, as the Go trainer counts
            round.submit(model.state_dict(), metrics={"learning_rate": optimizer.param_groups[0]["lr"]})


if __name__ == "__main__":
    main()
