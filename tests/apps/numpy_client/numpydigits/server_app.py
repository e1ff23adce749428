"""The server: FedAvg, a mean of the nodes' own tests, and a test of every model."""

from flwr.app import Context
from flwr.common import ndarrays_to_parameters
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg

from numpydigits.task import initial_weights, load_datasets, test


def weighted_average(metrics):
    """Return the accuracy over the test images of all nodes."""
    correct = [num_examples * m["accuracy"] for num_examples, m in metrics]
    return {"accuracy": sum(correct) / sum(num_examples for num_examples, _ in metrics)}


def global_evaluate(server_round, weights, config):
    """Test the model on the server's own images."""
    _, testset = load_datasets()
    loss, accuracy = test(weights, *testset)
    return loss, {"accuracy": accuracy}


def server_fn(context: Context):
    """Return the strategy and the number of rounds."""
    strategy = FedAvg(
        fraction_fit=context.run_config["fraction-fit"],
        evaluate_fn=global_evaluate,
        evaluate_metrics_aggregation_fn=weighted_average,
        initial_parameters=ndarrays_to_parameters(initial_weights()),
    )
    config = ServerConfig(num_rounds=context.run_config["num-server-rounds"])
    return ServerAppComponents(strategy=strategy, config=config)


app = ServerApp(server_fn=server_fn)
