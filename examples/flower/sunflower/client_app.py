"""The site's side."""

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from sunflower.task import load_data, test, train

app = ClientApp()


def arrays_of(record):
    return {name: array.numpy() for name, array in record.items()}


def record_of(arrays):
    return ArrayRecord({name: Array(a) for name, a in arrays.items()})


def data_of(context):
    return load_data(context.node_config["partition-id"], context.node_config["num-partitions"])


@app.train()
def train_fn(message: Message, context: Context):
    model = {name: a.copy() for name, a in arrays_of(message.content["arrays"]).items()}
    # The optimizer's memory stays at the site: it is kept from round to round.
    momentum = arrays_of(context.state["momentum"]) if "momentum" in context.state else {n: np.zeros_like(a) for n, a in model.items()}
    data, _ = data_of(context)
    config = context.run_config
    loss = train(
        model, momentum, data, config["local-epochs"], config["batch-size"], message.content["config"]["lr"],
        np.random.default_rng(message.content["config"]["server-round"]),
    )  # fmt: skip
    context.state["momentum"] = record_of(momentum)
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(data[0])})
    return Message(content=RecordDict({"arrays": record_of(model), "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate_fn(message: Message, context: Context):
    _, held_out = data_of(context)
    loss, accuracy = test(arrays_of(message.content["arrays"]), held_out)
    metrics = MetricRecord({"eval_loss": loss, "eval_acc": accuracy, "num-examples": len(held_out[0])})
    return Message(content=RecordDict({"metrics": metrics}), reply_to=message)
