"""What a node does, as a NumPyClient."""

from flwr.app import Context
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp

from numpydigits.task import load_data, test, train


class FlowerClient(NumPyClient):
    """Trains and tests on the data of one node."""

    def __init__(self, trainset, testset, local_steps, learning_rate):
        self.trainset = trainset
        self.testset = testset
        self.local_steps = local_steps
        self.learning_rate = learning_rate

    def fit(self, parameters, config):
        """Return the trained weights, the number of examples, and metrics."""
        weights = train(parameters, *self.trainset, self.local_steps, self.learning_rate)
        loss, _ = test(weights, *self.trainset)
        return weights, len(self.trainset[0]), {"train_loss": loss}

    def evaluate(self, parameters, config):
        """Return the loss, the number of examples, and metrics."""
        loss, accuracy = test(parameters, *self.testset)
        return loss, len(self.testset[0]), {"accuracy": accuracy}


def client_fn(context: Context):
    """Return the client of this node."""
    trainset, testset = load_data(
        context.node_config["partition-id"], context.node_config["num-partitions"]
    )
    return FlowerClient(
        trainset, testset, context.run_config["local-steps"], context.run_config["learning-rate"]
    ).to_client()


app = ClientApp(client_fn=client_fn)
