"""The picture of a flow: an SVG by layers, each node behind those that it needs. Pure: a flow in, text out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from markupsafe import Markup

from duetime.client.flows import Flow, NodeInfo

WIDTH, HEIGHT = 190, 48
ACROSS, DOWN = 60, 18
MOST_LETTERS = 22
MOST_DRAWN = 300  # nodes: a larger picture says nothing to people, the table below it has all

_COLOURS = {"waiting": "blocked"}  # the other states of nodes have the colours of tasks


def picture(flow: Flow[object], link: Callable[[str], str]) -> Markup:
    """Draw a flow; `link` returns the address of a node. A large one is not drawn."""
    if len(flow.nodes) > MOST_DRAWN:
        return Markup("")
    layers = _layers(flow.nodes)
    corners = {
        node.name: (column * (WIDTH + ACROSS), row * (HEIGHT + DOWN))
        for column, layer in enumerate(layers)
        for row, node in enumerate(layer)
    }
    width = len(layers) * (WIDTH + ACROSS) - ACROSS
    height = max(map(len, layers)) * (HEIGHT + DOWN) - DOWN
    lines = [_line(corners[before], corners[node.name]) for node in flow.nodes for before in node.after]
    boxes = [_box(node, corners[node.name], link(node.name)) for node in flow.nodes]
    states = ", ".join(f"{node.name} {node.state}" for node in flow.nodes)
    head = Markup('<svg class="graph" viewBox="-2 -2 {} {}" width="{}" height="{}" role="group" aria-label="{}">').format(
        width + 4, height + 4, width + 4, height + 4, f"Nodes of the flow: {states}"
    )
    return head + Markup("").join([*lines, *boxes]) + Markup("</svg>")


def _layers(nodes: Sequence[NodeInfo]) -> list[list[NodeInfo]]:
    """Return the nodes by how many stand before them on the longest way. They come in an order in which needs are met."""
    depth: dict[str, int] = {}
    layers: list[list[NodeInfo]] = []
    for node in nodes:
        depth[node.name] = _depth(node, depth)
        if depth[node.name] == len(layers):
            layers.append([])
        layers[depth[node.name]].append(node)
    return layers


def _depth(node: NodeInfo, depth: Mapping[str, int]) -> int:
    return max((depth[before] + 1 for before in node.after), default=0)


def _line(start: tuple[int, int], end: tuple[int, int]) -> Markup:
    x, y = start[0] + WIDTH, start[1] + HEIGHT // 2
    to_x, to_y = end[0], end[1] + HEIGHT // 2
    return Markup('<path class="link" d="M{} {}C{} {} {} {} {} {}"/>').format(
        x, y, x + ACROSS // 2, y, to_x - ACROSS // 2, to_y, to_x, to_y
    )


def _box(node: NodeInfo, corner: tuple[int, int], address: str) -> Markup:
    x, y = corner
    done = f"{node.ended:,} of {node.members:,}" if node.members != 1 or node.made > 1 else ""
    text = f"{node.name}: {node.state}{', ' + done if done else ''}; {node.why}"
    return Markup(
        '<a href="{}" aria-label="{}"><title>{}</title><rect class="{}" x="{}" y="{}" width="{}" height="{}" rx="6"/>'
        '<text x="{}" y="{}">{}</text><text class="state" x="{}" y="{}">{}</text></a>'
    ).format(
        address, text, text, _COLOURS.get(node.state, node.state), x, y, WIDTH, HEIGHT, x + 10, y + 20, _cut(node.name),
        x + 10, y + 38, f"{node.state}{' · ' + done if done else ''}",
    )  # fmt: skip


def _cut(name: str) -> str:
    return name if len(name) <= MOST_LETTERS else f"{name[: MOST_LETTERS - 1]}…"
