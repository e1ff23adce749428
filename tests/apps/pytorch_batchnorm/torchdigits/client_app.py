"""What a node does with a message."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from torchdigits.task import Net, load_data
from torchdigits.task import test as test_net
from torchdigits.task import train as train_net

app = ClientApp()


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Train the model on the data of this node."""
    net = Net()
    net.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    trainloader, _ = load_data(
        context.node_config["partition-id"], context.node_config["num-partitions"]
    )
    train_loss = train_net(
        net, trainloader, context.run_config["local-epochs"], msg.content["config"]["lr"]
    )
    metrics = {"train_loss": train_loss, "num-examples": len(trainloader.dataset)}
    content = RecordDict(
        {"arrays": ArrayRecord(net.state_dict()), "metrics": MetricRecord(metrics)}
    )
    return Message(content=content, reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    """Test the model on the data of this node."""
    net = Net()
    net.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    _, testloader = load_data(
        context.node_config["partition-id"], context.node_config["num-partitions"]
    )
    eval_loss, eval_acc = test_net(net, testloader)
    metrics = {
        "eval_loss": eval_loss,
        "eval_acc": eval_acc,
        "num-examples": len(testloader.dataset),
    }
    return Message(content=RecordDict({"metrics": MetricRecord(metrics)}), reply_to=msg)
