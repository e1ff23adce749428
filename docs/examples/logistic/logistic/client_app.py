"""The device: it trains on a file of its own, and the mod makes the update private."""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from flwr_sdp.clients import SeparatedDPMod
from logistic.data import read_csv
from logistic.model import train as train_model

# The budget comes from the server's run config. The device's say is in its node-config: caps that
# the mod refuses to exceed, and the ledger it counts in.
app = ClientApp(mods=[SeparatedDPMod()])


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train on the rows of this device, as an app without privacy would."""
    features, labels = read_csv(str(context.node_config["data-path"]))
    config = context.run_config
    coefficients = train_model(
        message.content["arrays"]["coefficients"].numpy(),
        features,
        labels,
        steps=int(config["local-steps"]),
        learning_rate=float(config["local-learning-rate"]),
    )
    content = RecordDict(
        {
            "arrays": ArrayRecord({"coefficients": Array(coefficients)}),
            "metrics": MetricRecord({"num-examples": len(labels)}),
        }
    )
    return Message(content, reply_to=message)
