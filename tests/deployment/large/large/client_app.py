"""Devices that answer with the model they got: a zero update, which the mod makes private."""

from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from flwr_sdp import SeparatedBudget
from flwr_sdp.clients import SeparatedDPMod

BUDGET = SeparatedBudget(epsilon_direction=8.0, epsilon_magnitude=2.0)

app = ClientApp(mods=[SeparatedDPMod(BUDGET, max_norm=1.0)])


@app.train()
def train(message: Message, context: Context) -> Message:
    content = RecordDict(
        {"arrays": message.content["arrays"], "metrics": MetricRecord({"num-examples": 1})}
    )
    return Message(content, reply_to=message)
