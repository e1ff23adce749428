"""What a node does with a message."""

import warnings

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from sklearn.metrics import log_loss

from sklearndigits.task import CLASSES, create_model, get_params, load_data, set_params

app = ClientApp()


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Fit the model to the data of this node."""
    model = create_model(context.run_config["local-epochs"])
    set_params(model, msg.content["arrays"].to_numpy_ndarrays())
    (images, labels), _ = load_data(
        context.node_config["partition-id"], context.node_config["num-partitions"]
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a few steps do not converge
        model.fit(images, labels)
    loss = log_loss(labels, model.predict_proba(images), labels=range(CLASSES))
    metrics = {"train_logloss": loss, "num-examples": len(images)}
    content = RecordDict(
        {"arrays": ArrayRecord(get_params(model)), "metrics": MetricRecord(metrics)}
    )
    return Message(content=content, reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    """Test the model on the data of this node."""
    model = create_model(context.run_config["local-epochs"])
    set_params(model, msg.content["arrays"].to_numpy_ndarrays())
    _, (images, labels) = load_data(
        context.node_config["partition-id"], context.node_config["num-partitions"]
    )
    metrics = {
        "test_logloss": log_loss(labels, model.predict_proba(images), labels=range(CLASSES)),
        "accuracy": model.score(images, labels),
        "num-examples": len(images),
    }
    return Message(content=RecordDict({"metrics": MetricRecord(metrics)}), reply_to=msg)
