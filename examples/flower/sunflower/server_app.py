"""The server's side: Flower runs all of it, a Girassol site only its beginning,
to hear the first weights and the config of the messages."""

from flwr.app import Array, ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from sunflower.task import new_model

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    FedAvg().start(
        grid=grid,
        initial_arrays=ArrayRecord({name: Array(a) for name, a in new_model().items()}),
        train_config=ConfigRecord({"lr": context.run_config["learning-rate"]}),
        num_rounds=context.run_config["num-server-rounds"],
    )
