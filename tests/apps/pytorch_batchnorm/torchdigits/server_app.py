"""The server: FedAvg, and a test of every model."""

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from torch.utils.data import DataLoader

from torchdigits.task import Net, load_datasets, test

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train a model, and save it."""
    arrays = ArrayRecord(Net().state_dict())
    strategy = FedAvg(fraction_train=context.run_config["fraction-train"])
    result = strategy.start(
        grid=grid,
        initial_arrays=arrays,
        num_rounds=context.run_config["num-server-rounds"],
        train_config=ConfigRecord({"lr": context.run_config["learning-rate"]}),
        evaluate_fn=global_evaluate,
    )
    torch.save(load_net(result.arrays).state_dict(), "final_model.pt")


def load_net(arrays: ArrayRecord) -> Net:
    """Return the model of these arrays."""
    net = Net()
    net.load_state_dict(arrays.to_torch_state_dict())
    return net


def global_evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Test the model on the server's own images."""
    _, testset = load_datasets()
    loss, accuracy = test(load_net(arrays), DataLoader(testset, batch_size=100))
    return MetricRecord({"accuracy": accuracy, "loss": loss})
