"""Options of an export that a plan does not contain: names, images, paths and secrets."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from flopwise import options
from flopwise.options import Spec, option
from flopwise.values import dataclass

_name = partial(option, section="Names and images")
_place = partial(option, section="Places")
_secret = partial(option, section="Secrets, by reference")
_cluster = partial(option, section="Clusters and clouds")
_text = options.name("text", 4096)


# fmt: off
@dataclass(frozen=True, slots=True, kw_only=True)
class ExportSettings(Spec):
    """Names, images, paths and references to secrets. None: not given; files then have a placeholder to fill in."""

    name: str | None = _name("--name", _text, "Name of the deployment (default: the workload's).")
    image: str | None = _name(
        "--image", _text, "Container image (default for serving: the engine's own release; for training, build your "
        "own).",
    )
    script: str | None = _name("--script", _text, "Training program to use instead of the exported one.")
    learning_rate: float | None = _name(
        "--learning-rate", options.RATIO, "Learning rate, which plans do not have (default: the trainer's, if any).",
    )
    model_path: str | None = _place(
        "--model-path", _text, "Weights: a hub id, a folder or a URI (default: the model's hub id).",
    )
    draft_path: str | None = _place(
        "--draft-path", _text, "Weights of the draft model (default: its hub id, if it is a model).",
    )
    data: str | None = _place("--data", _text, "Training or batch data: a path, a hub id or a URI.")
    output: str | None = _place("--output", _text, "Checkpoints and results: a path or a URI.")
    weights_secret: str | None = _secret(
        "--weights-secret", _text, "Secret that holds the token for gated weights, under the key `token`.",
    )
    pull_secret: str | None = _secret("--pull-secret", _text, "Secret that holds the registry's credentials.")
    alert_secret: str | None = _secret(
        "--alert-secret", _text, "File or secret that holds the webhook URL that alerts are sent to.",
    )
    namespace: str | None = _cluster("--namespace", _text, "Kubernetes namespace (default: that of the context).")
    queue: str | None = _cluster("--queue", _text, "Kueue's local queue, or SLURM's partition.")
    priority: str | None = _cluster("--priority", _text, "Kubernetes priority class, or SLURM's QOS.")
    cluster: str | None = _cluster("--cluster", _text, "Name of the Kubernetes cluster that node pools belong to.")
    account: str | None = _cluster(
        "--account", _text, "Cloud account: a GCP project, an Azure resource group, a SLURM account.",
    )
    hostname: str | None = _cluster("--hostname", _text, "Host name of the gateway.")
    gateway: str | None = _cluster("--gateway", _text, "Gateway (Gateway API) that routes attach to.")
    prometheus: str | None = _cluster("--prometheus", _text, "Address of the Prometheus server that scalers query.")
    machines: str | None = _cluster("--machines", _text, "Addresses of the machines, separated by commas.")
    contact: str | None = _cluster("--contact", _text, "Email address for budgets and alerts.")

    def value(self, name: str) -> str:
        """The setting's value, or its placeholder."""
        given: str | float | None = getattr(self, name)
        return PLACEHOLDERS[name] if given is None else str(given)
# fmt: on


PLACEHOLDERS: Mapping[str, str] = {
    name: f"change-me-{name.replace('_', '-')}" for name in options.options_of(ExportSettings) if name != "name"
} | {
    "script": "change-me-script.py", "data": "/change-me-data", "output": "/change-me-output",
    "hostname": "change-me-hostname.example.com", "prometheus": "http://change-me-prometheus:9090",
    "machines": "change-me-machine", "contact": "change-me-contact@example.com",
}  # fmt: skip
"""Placeholders in files for settings that are not given; each is a valid value of its kind."""
