"""Runs the ClientApp of an unmodified Flower app as the trainer of a site.

``python -m girassol flower --app DIR`` is the way in. The command's process
speaks with the agent and needs the standard library only; the app and ``flwr``
live in a child process (``flwr`` >= 1.21).

=============  ==========================================================
command        arguments, and the session with the agent
_runner        rounds: what a task is to the app, what a reply is to a round
_worker        the child's life as seen from its parent
_project       pyproject.toml, run-config and key=value arguments
_child         the child: loads the app, answers requests
_app           a call of the ClientApp: message, reply, state
_records       arrays and metrics in Flower's records and in safetensors
_plan          first messages of the ServerApp, in a child of its own
_state         the file that keeps ctx.state
=============  ==========================================================
"""
