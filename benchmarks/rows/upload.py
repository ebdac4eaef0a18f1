"""What a physically smaller net buys in bytes: the upload of a client."""

from collections.abc import Iterator

from benchmarks.measure import Options, Row, as_much, at_most
from benchmarks.rows.steps import submodel_of
from dapperfl import nets
from dapperfl.core.channels import Scope
from dapperfl.core.cost import cost

SCOPES: tuple[Scope, ...] = ("inner", "all")


def measure(options: Options) -> Iterator[Row | str]:
    """Compare a client's upload with the full net's: at most 1 - rho of it, and one per cent."""
    width = 16 if options.quick else 64
    net = nets.build("resnet10", num_classes=10, width=width)
    for scope in SCOPES:
        for rho in (0.2, 0.4, 0.6, 0.8):
            submodel = submodel_of(net, rho, scope)
            small, full = cost(submodel).upload_bytes, cost(submodel.graph.full()).upload_bytes
            name = (
                f"upload at rho {rho:g}, ResNet10 width {width}, scope {scope}, over the full net's"
            )
            yield as_much(name, small, "bytes", full, at_most(1 - rho + 0.01))
