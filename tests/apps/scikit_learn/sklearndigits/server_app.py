"""The server: FedAvg, and a test of every model."""

import joblib
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from sklearn.metrics import log_loss

from sklearndigits.task import CLASSES, create_model, get_params, load_datasets, set_params

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train a model, and save it."""
    model = create_model(context.run_config["local-epochs"])
    arrays = ArrayRecord(get_params(model))
    strategy = FedAvg(fraction_train=1.0, fraction_evaluate=1.0)
    result = strategy.start(
        grid=grid,
        initial_arrays=arrays,
        num_rounds=context.run_config["num-server-rounds"],
        evaluate_fn=global_evaluate,
    )
    set_params(model, result.arrays.to_numpy_ndarrays())
    joblib.dump(model, "logreg_model.pkl")


def global_evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Test the model on the server's own images."""
    model = create_model(local_epochs=1)
    set_params(model, arrays.to_numpy_ndarrays())
    _, (images, labels) = load_datasets()
    loss = log_loss(labels, model.predict_proba(images), labels=range(CLASSES))
    return MetricRecord({"accuracy": model.score(images, labels), "loss": loss})
