"""The model, the data, and one node's training and testing."""

from functools import cache

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    """Two convolutions, each with batch normalisation, and a linear layer."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 16, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(16)
        self.pool = nn.MaxPool2d(2)
        self.fc = nn.Linear(16 * 2 * 2, 10)

    def forward(self, x):
        x = self.pool(torch.relu(self.bn1(self.conv1(x))))
        x = self.pool(torch.relu(self.bn2(self.conv2(x))))
        return self.fc(x.flatten(1))


@cache
def load_datasets():
    """Return the images and labels of all nodes, and those that the server tests on."""
    pixels, labels = load_digits(return_X_y=True)
    images = torch.tensor(pixels / 16, dtype=torch.float32).view(-1, 1, 8, 8)
    x_train, x_test, y_train, y_test = train_test_split(
        images, torch.tensor(labels), test_size=300, random_state=0
    )
    return TensorDataset(x_train, y_train), TensorDataset(x_test, y_test)


def load_data(partition_id, num_partitions):
    """Return the node's own images, four fifths for training and the others for testing."""
    dataset, _ = load_datasets()
    images, labels = dataset[partition_id::num_partitions]
    split = len(images) * 4 // 5
    trainset = TensorDataset(images[:split], labels[:split])
    testset = TensorDataset(images[split:], labels[split:])
    return DataLoader(trainset, batch_size=16, shuffle=True), DataLoader(testset, batch_size=16)


def train(net, loader, epochs, learning_rate):
    """Train the model, and return the mean loss."""
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(net.parameters(), lr=learning_rate)
    net.train()
    running_loss = 0.0
    for _ in range(epochs):
        for images, labels in loader:
            optimizer.zero_grad()
            loss = criterion(net(images), labels)
            loss.backward()
            optimizer.step()
            running_loss += loss.item()
    return running_loss / (epochs * len(loader))


def test(net, loader):
    """Return the loss and the accuracy of the model."""
    criterion = nn.CrossEntropyLoss(reduction="sum")
    net.eval()
    loss, correct = 0.0, 0
    with torch.no_grad():
        for images, labels in loader:
            outputs = net(images)
            loss += criterion(outputs, labels).item()
            correct += (outputs.argmax(1) == labels).sum().item()
    return loss / len(loader.dataset), correct / len(loader.dataset)
