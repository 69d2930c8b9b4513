"""A small ResNet with BatchNorm that tells shapes apart: discs, squares, rings and crosses, drawn as they are needed.

The sites' cameras differ in contrast and noise, and each sees half of the shapes more often: neither is as good alone.
"""

import argparse
import itertools

import torch
import torch.nn.functional as F
from torch import nn

import girassol

SIZE = 24  # pixels

args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
args.add_argument("site", type=int, help="number of this site, from 0: its camera and its shapes")
args.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cpu, cuda or rocm")
args.add_argument("--width", type=int, default=8, help="channels of the first stage")
args.add_argument("--batch", type=int, default=32)
args.add_argument("--images", type=int, default=4096, help="of this site")


def draw(n: int, site: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images [n, 1, SIZE, SIZE] and their classes [n]."""
    rng = torch.Generator().manual_seed(seed)
    often = torch.tensor([3.0, 1.0]).roll(site).repeat(2)  # two shapes three times as often
    classes = torch.multinomial(often, n, replacement=True, generator=rng)
    centre = SIZE / 2 + 8 * (torch.rand(2, n, 1, 1, generator=rng) - 0.5)
    radius = 4 + 5 * torch.rand(n, 1, 1, generator=rng)
    y, x = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
    dy, dx = (y - centre[0]).abs(), (x - centre[1]).abs()
    r = (dx.square() + dy.square()).sqrt()
    box = torch.maximum(dx, dy) < radius
    shapes = torch.stack([r < radius, box, (r < radius) & (r > radius - 2.5), box & (torch.minimum(dx, dy) < 1.5)])
    images = shapes[classes, torch.arange(n)].float()
    contrast, noise = 1.0 - 0.5 * (site % 2), 0.3 + 0.1 * (site % 3)
    return (contrast * images + noise * torch.randn(n, SIZE, SIZE, generator=rng)).unsqueeze(1), classes


class Block(nn.Module):
    """Two convolutions beside a shortcut, as in ResNet."""

    def __init__(self, i: int, o: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(i, o, 3, stride, 1, bias=False), nn.BatchNorm2d(o)
        self.conv2, self.bn2 = nn.Conv2d(o, o, 3, 1, 1, bias=False), nn.BatchNorm2d(o)
        self.shortcut = nn.Sequential()
        if i != o or stride != 1:
            self.shortcut = nn.Sequential(nn.Conv2d(i, o, 1, stride, bias=False), nn.BatchNorm2d(o))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + self.shortcut(x))


def resnet(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
        Block(width, width, 1), Block(width, 2 * width, 2), Block(2 * width, 4 * width, 2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, 4),
    )  # fmt: skip


def main() -> None:
    a = args.parse_args()
    device = torch.device(a.device.replace("rocm", "cuda"))  # ROCm builds of PyTorch say cuda
    torch.manual_seed(0)  # the same first weights at every site
    model = resnet(a.width).to(device)
    torch.manual_seed(1 + a.site)
    train = torch.utils.data.TensorDataset(*draw(a.images, a.site, 1 + a.site))
    loader = torch.utils.data.DataLoader(train, a.batch, shuffle=True, drop_last=True)
    held_out = [t.to(device) for t in draw(512, a.site, 1000 + a.site)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)

    def loss_of(images: torch.Tensor, classes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):  # weights and statistics stay fp32
            scores = model(images)
        return F.cross_entropy(scores.float(), classes), (scores.argmax(1) == classes).float().mean()

    def evaluate(round: girassol.Round) -> None:
        model.load_state_dict(round.state_dict(device))
        # Averaged statistics are not those of averaged weights: measure them anew, on data of this site.
        torch.optim.swa_utils.update_bn(itertools.islice(loader, 16), model, device)
        model.eval()
        with torch.no_grad():
            loss, accuracy = loss_of(*held_out)
        round.submit(loss=float(loss), samples=len(held_out[1]), metrics={"accuracy": float(accuracy)})

    facts = {"precision": "bf16" if device.type == "cuda" else "fp32", "batchSize": a.batch}
    # The seed is the module, not its state dict: so running_mean and running_var are known as buffers and averaged as such.
    with girassol.Session(seed=model, evaluate=evaluate, trainer=facts) as session:
        for round in session:
            model.load_state_dict(round.state_dict(device))  # running statistics and num_batches_tracked too
            model.train()
            for images, classes in round.batches(loader):
                loss, accuracy = loss_of(images.to(device), classes.to(device))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                if round.step(loss, samples=len(images)):
                    break
            round.submit(model.state_dict(), metrics={"train_accuracy": accuracy} if round.steps else None)


if __name__ == "__main__":
    main()
