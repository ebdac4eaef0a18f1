"""Who holds what: devices by domain and level."""

from dapperfl.core.messages import Device
from dapperfl.lab.gather import Run
from dapperfl.lab.report.frame import level_name
from dapperfl.lab.report.markup import Markup, element, join
from dapperfl.lab.report.tables import folded, table

_FLEETS = 6  # different allocations that are drawn
_DEVICES = 100  # devices that are listed one by one


def allocations(runs: list[Run]) -> Markup:
    """Show every different allocation of the runs once, as counts by domain and level."""
    found: dict[tuple[Device, ...], list[Run]] = {}
    for run in runs:
        found.setdefault(run.devices, []).append(run)
    parts = [_fleet(fleet, whose) for fleet, whose in list(found.items())[:_FLEETS]]
    hidden = len(found) - len(parts)
    if hidden:
        parts.append(element("p", f"… and {hidden} more, in allocation.json of the other runs."))
    return join(*parts)


def _fleet(fleet: tuple[Device, ...], runs: list[Run]) -> Markup:
    seeds = sorted({run.seed for run in runs})
    whose = f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"
    levels = sorted({device.rho for device in fleet})
    domains = sorted({device.domain for device in fleet})
    most = max(len(_at(fleet, domain, rho)) for domain in domains for rho in levels)
    rows = [
        [
            domain,
            *(_cell(_at(fleet, domain, rho), most) for rho in levels),
            _count([device for device in fleet if device.domain == domain]),
        ]
        for domain in domains
    ]
    total = [_count([device for device in fleet if device.rho == rho]) for rho in levels]
    rows.append(["all", *total, _count(list(fleet))])
    head = ["domain", *map(level_name, levels), "all levels"]
    caption = f"Devices (and their training images), {whose}"
    return element("div", table(caption, head, rows), _listed(fleet, whose), class_="fleet")


def _at(fleet: tuple[Device, ...], domain: str, rho: float) -> list[Device]:
    return [device for device in fleet if device.domain == domain and device.rho == rho]


def _count(devices: list[Device]) -> str:
    images = sum(device.num_samples for device in devices)
    return f"{len(devices)} ({images:,})" if devices else "–"


def _cell(devices: list[Device], most: int) -> Markup:
    """Return a count on a ground that is the stronger, the more devices there are."""
    share = round(60 * len(devices) / most)
    return element("span", _count(devices), class_="shade", style=f"--share: {share}%")


def _listed(fleet: tuple[Device, ...], whose: str) -> Markup:
    rows = [[d.id, d.domain, f"{d.rho:g}", f"{d.num_samples:,}"] for d in fleet[:_DEVICES]]
    hidden = len(fleet) - len(rows)
    more = [element("p", f"… and {hidden:,} more, in allocation.json.")] if hidden else []
    head = ["device", "domain", "ρ", "images"]
    return folded(f"Every device, {whose}", table(f"Devices, {whose}", head, rows), *more)
