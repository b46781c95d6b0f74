"""ResNet-18, for `imagenet.py` where torchvision is not installed; its weights have the same names as torchvision's.

After He, Zhang, Ren, Sun: Deep Residual Learning for Image Recognition (2015).
"""

from __future__ import annotations

from torch import Tensor, nn


class BasicBlock(nn.Module):
    """Two convolutions, and a way around them."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, kernel_size=3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(channels, channels, kernel_size=3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.downsample: nn.Module | None = None
        if stride != 1:
            self.downsample = nn.Sequential(
                nn.Conv2d(channels_in, channels, kernel_size=1, stride=stride, bias=False),
                nn.BatchNorm2d(channels),
            )

    def forward(self, image: Tensor) -> Tensor:
        """Return the features of the images of a batch."""
        around = image if self.downsample is None else self.downsample(image)
        through = self.relu(self.bn1(self.conv1(image)))
        out: Tensor = self.relu(self.bn2(self.conv2(through)) + around)
        return out


class ResNet18(nn.Module):
    """Images of any size in, one score for each class out."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, kernel_size=7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        self.layer1 = nn.Sequential(BasicBlock(64, 64, stride=1), BasicBlock(64, 64, stride=1))
        self.layer2 = nn.Sequential(BasicBlock(64, 128, stride=2), BasicBlock(128, 128, stride=1))
        self.layer3 = nn.Sequential(BasicBlock(128, 256, stride=2), BasicBlock(256, 256, stride=1))
        self.layer4 = nn.Sequential(BasicBlock(256, 512, stride=2), BasicBlock(512, 512, stride=1))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(512, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, image: Tensor) -> Tensor:
        """Return the scores of the images of a batch."""
        features = self.maxpool(self.relu(self.bn1(self.conv1(image))))
        features = self.layer4(self.layer3(self.layer2(self.layer1(features))))
        scores: Tensor = self.fc(self.avgpool(features).flatten(start_dim=1))
        return scores
