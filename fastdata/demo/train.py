"""A small convolutional network and its training loop, for the demo."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from fastdata.loader import Loader

__all__ = ["Epoch", "SmallCNN", "train"]

_PEAK_RATE = 3e-3


class SmallCNN(nn.Module):
    """Four strided convolution blocks and a linear layer; about 0.25 million parameters."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for width in (24, 48, 96, 192):
            layers += [
                nn.Conv2d(channels, width, 3, stride=2, padding=1, bias=False),
                nn.BatchNorm2d(width),
                nn.ReLU(inplace=True),
            ]
            channels = width
        self.features = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(channels, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Float images [B, 3, H, W] -> logits [B, classes]."""
        logits: torch.Tensor = self.head(self.features(images))
        return logits


@dataclass(frozen=True)
class Epoch:
    """What an epoch of training gave: mean loss, held-out accuracy in [0, 1], wall seconds."""

    loss: float
    accuracy: float
    seconds: float


def train(training: Loader, held_out: Loader, classes: int, epochs: int) -> list[Epoch]:
    """Train a SmallCNN by one-cycle AdamW and measure it after every epoch."""
    torch.manual_seed(0)
    model = SmallCNN(classes).to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=_PEAK_RATE, weight_decay=0.02)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=_PEAK_RATE, total_steps=epochs * len(training) + 1
    )
    history = []
    for epoch in range(epochs):
        started = time.monotonic()
        training.set_epoch(epoch)
        model.train()
        losses = []
        for images, labels in training:
            loss = functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
        accuracy = _accuracy(model, held_out)
        mean = sum(losses) / len(losses)
        history.append(Epoch(mean, accuracy, time.monotonic() - started))
        print(f"  epoch {epoch + 1}: loss {mean:.2f}, {accuracy:.0%} of held-out images right")
    return history


@torch.no_grad()
def _accuracy(model: nn.Module, held_out: Loader) -> float:
    model.eval()
    right = seen = 0
    held_out.set_epoch(0)
    for images, labels in held_out:
        right += int((model(images).argmax(dim=1) == labels).sum())
        seen += len(labels)
    return right / seen
